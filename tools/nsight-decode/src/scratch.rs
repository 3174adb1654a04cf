// SPDX-License-Identifier: GPL-2.0-only
//! A directory for files that a test writes. The crate tempfile would change the features of the program's
//! dependencies, and cause all of them to be compiled a second time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty one.
    pub fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("nsight-decode-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
