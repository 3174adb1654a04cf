// SPDX-License-Identifier: GPL-2.0-only
//! The input: a recording, and the code that ran.

use std::path::PathBuf;

use clap::Args;
use nsight_decode::code::{Code, KernelSource};
use nsight_decode::error::{Error, Result};
use nsight_decode::perfdata::Recording;

#[derive(Args)]
pub struct Source {
    /// A perf.data file, or the directory of perf record --kcore.
    perf_data: PathBuf,
    /// Root of the recorded machine's files: programs, libraries, debug symbols; no link leads out of it
    /// [default: / for what this machine recorded, by its name; no files for others].
    #[arg(long, value_name = "DIR")]
    symfs: Option<PathBuf>,
    /// Directory with kcore and kallsyms [default: PERF_DATA/kcore_dir]; /proc for the same boot.
    #[arg(long, value_name = "DIR")]
    kcore: Option<PathBuf>,
    /// Kernel code of an uncompressed vmlinux; changes that were made at boot are missing.
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
    /// The recorded machine's CPU, whose errata are worked around: decimal, as /proc/cpuinfo tells them
    /// [default: the file's].
    #[arg(long, value_name = "FAMILY/MODEL/STEPPING", value_parser = cpu)]
    cpu: Option<(u16, u8, u8)>,
}

fn cpu(text: &str) -> std::result::Result<(u16, u8, u8), String> {
    let mut parts = text.split('/');
    let mut next = || parts.next().unwrap_or_default();
    match (next().parse(), next().parse(), next().parse(), parts.next()) {
        (Ok(family), Ok(model), Ok(stepping), None) => Ok((family, model, stepping)),
        _ => Err("three numbers, such as 6/85/7".into()),
    }
}

pub struct Opened {
    pub recording: Recording,
    pub code: Code,
}

impl Source {
    pub fn open(self) -> Result<Opened> {
        if let Some(directory) = self.symfs.as_ref().filter(|directory| !directory.is_dir()) {
            let hint = "--symfs takes the root of the recorded machine's files";
            return Err(Error::input(directory, "no directory", hint));
        }
        let mut recording = Recording::open(&self.perf_data)?;
        recording.cpu = self.cpu;
        let root = self.symfs.or_else(|| recording.is_of_this_machine().then(|| PathBuf::from("/")));
        let kernel = KernelSource { kcore: self.kcore, vmlinux: self.vmlinux };
        let code = Code::new(&recording, root.as_deref(), &kernel)?;
        Ok(Opened { recording, code })
    }
}
