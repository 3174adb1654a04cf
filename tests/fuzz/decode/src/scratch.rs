// SPDX-License-Identifier: GPL-2.0-only
//! Files that are removed when the process ends.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A file in memory; it has a name as long as it is open.
pub struct Memory(pub File);

impl Memory {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: a constant string; nothing else owns the new file descriptor.
        let mut file = unsafe {
            let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        file.write_all(bytes).expect("memory");
        Self(file)
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn remove() {
    if let Some(directory) = DIRECTORY.get() {
        let _ = fs::remove_dir_all(directory);
    }
}

/// A directory of this process, in memory if possible.
pub fn directory() -> &'static Path {
    DIRECTORY.get_or_init(|| {
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let directory = base.join(format!("nsight-fuzz-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        // SAFETY: a function without arguments.
        unsafe { libc::atexit(remove) };
        directory
    })
}
