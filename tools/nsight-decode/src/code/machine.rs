// SPDX-License-Identifier: GPL-2.0-only
//! All code of the recorded machine.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::kallsyms::KERNEL_BEGIN;
use super::kernel::{Kernel, KernelSource};
use super::object::Object;
use super::symbols::Interner;
use crate::error::Result;
use crate::files;
use crate::perfdata::{Map, Recording};
use crate::tasks::Tasks;

const MAX_LACKING: usize = 1 << 12;

/// All known code of a recording; shared by the decoding threads.
pub struct Code {
    pub kernel: Kernel,
    pub tasks: Tasks,
    pub interner: Interner,
    root: Option<PathBuf>,
    objects: Mutex<HashMap<Key, Option<Arc<Object>>>>,
    /// Why objects are missing.
    missing: Mutex<BTreeMap<String, String>>,
    /// How often code of an object was needed but missing.
    lacking: Mutex<BTreeMap<String, u64>>,
}

type Key = (String, Option<String>);

impl Code {
    /// `root`: directory with the recorded machine's files, / for this machine's; None: the files are not available.
    pub fn new(recording: &Recording, root: Option<&Path>, source: &KernelSource) -> Result<Self> {
        let kernel = Kernel::load(recording, source)?;
        let code = Self {
            kernel,
            tasks: Tasks::new(&recording.side),
            interner: Interner::default(),
            root: root.map(Path::to_owned),
            objects: Mutex::default(),
            missing: Mutex::default(),
            lacking: Mutex::default(),
        };
        code.interner.id("", &"".into());
        Ok(code)
    }

    /// The object of a mapping. None, with a note of the reason, if it is missing or is another version.
    pub(super) fn object(&self, map: &Map) -> Option<Arc<Object>> {
        let wanted = map.build_id.map(|id| id.hex());
        let key: Key = (map.name.clone(), wanted.clone());
        let mut objects = self.objects.lock().unwrap_or_else(|e| e.into_inner());
        objects
            .entry(key)
            .or_insert_with(|| match self.open(&map.name, wanted.as_deref()) {
                Ok(object) => Some(Arc::new(object)),
                Err(why) => {
                    let mut missing = self.missing.lock().unwrap_or_else(|e| e.into_inner());
                    missing.insert(map.name.clone(), why);
                    None
                }
            })
            .clone()
    }

    fn open(&self, name: &str, build_id: Option<&str>) -> std::result::Result<Object, String> {
        if !name.starts_with('/') || name.starts_with("//") || name.starts_with("/memfd:") {
            return Err("code that was made while it ran is in no file".into());
        }
        let Some(root) = &self.root else {
            return Err("of another machine, and no --symfs was given".into());
        };
        let (file, path) = files::open_below(root, Path::new(name)).map_err(|e| {
            // For the user, a directory of links to files elsewhere looks right.
            if root.join(name.trim_start_matches('/')).exists() {
                return "a link leads out of --symfs: copy the file there, or bind-mount it".into();
            }
            e.to_string()
        })?;
        let object = Object::new(&file, &path, name, root)?;
        let own: Option<String> =
            object.build_id.as_ref().map(|id| id.iter().map(|b| format!("{b:02x}")).collect());
        match (build_id, own) {
            // perf pads shorter ids.
            (Some(wanted), Some(own)) if !wanted.starts_with(&own) && !own.starts_with(wanted) => {
                Err(format!("another version: its build id is {own}, that of the recording {wanted}"))
            }
            _ => Ok(object),
        }
    }

    /// Code at an address was needed but is missing. `mapped`: for user code, the name of the mapping there.
    pub fn lacks(&self, mapped: Option<&str>, address: u64) {
        let name = match mapped {
            Some(name) => name.to_owned(),
            None if address >= KERNEL_BEGIN => "the kernel: code that is in no copy of it".to_owned(),
            None => "memory that perf knows no mapping of".to_owned(),
        };
        let mut lacking = self.lacking.lock().unwrap_or_else(|e| e.into_inner());
        // A damaged trace can lead anywhere.
        if lacking.len() < MAX_LACKING || lacking.contains_key(&name) {
            *lacking.entry(name).or_default() += 1;
        }
    }

    /// Objects whose code was needed but missing: how often, and why.
    pub fn lacking(&self) -> Vec<(String, u64, String)> {
        let missing = self.missing.lock().unwrap_or_else(|e| e.into_inner());
        let lacking = self.lacking.lock().unwrap_or_else(|e| e.into_inner());
        let why = |name: &String| missing.get(name).cloned().unwrap_or_else(|| "no such code".into());
        let mut all: Vec<_> = lacking.iter().map(|(name, &n)| (name.clone(), n, why(name))).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }
}
