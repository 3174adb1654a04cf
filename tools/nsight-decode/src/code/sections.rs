// SPDX-License-Identifier: GPL-2.0-only
//! Code as libipt reads it: pieces of files at addresses, shared by all threads.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::pt::ffi;

/// libipt keeps code mapped and its block cache up to so many bytes.
const CACHE_LIMIT: u64 = 1 << 30;
/// Larger pieces are cut: libipt allocates four times its size for one that is used.
pub const PIECE: u64 = 2 << 20;

/// libipt's cache of sections.
pub struct Sections {
    cache: *mut ffi::Iscache,
    known: Mutex<HashMap<(PathBuf, u64, u64, u64), i32>>,
}

// SAFETY: libipt locks the cache (FEATURE_THREADS, which Debian's library has).
unsafe impl Send for Sections {}
unsafe impl Sync for Sections {}

impl Sections {
    pub fn new() -> Result<Self> {
        // SAFETY: a name is optional; NULL means no memory.
        let cache = unsafe { ffi::pt_iscache_alloc(std::ptr::null()) };
        if cache.is_null() {
            return Err(Error::memory("libipt: no memory for a section cache"));
        }
        unsafe { ffi::pt_iscache_set_limit(cache, CACHE_LIMIT) };
        Ok(Self { cache, known: Mutex::default() })
    }

    pub fn cache(&self) -> *mut ffi::Iscache {
        self.cache
    }

    /// Numbers of the pieces of a file's bytes at an address. Empty: the file cannot be used.
    pub fn add(&self, path: &Path, offset: u64, size: u64, address: u64) -> Vec<i32> {
        let mut ids = Vec::new();
        let mut done = 0;
        while done < size {
            // Up to addresses that are multiples, so that neighbours meet at the same places.
            let at = address.wrapping_add(done);
            let n = (PIECE - at % PIECE).min(size - done);
            ids.extend(self.add_one(path, offset.saturating_add(done), n, at));
            done += n;
        }
        ids
    }

    fn add_one(&self, path: &Path, offset: u64, size: u64, address: u64) -> Option<i32> {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let key = (path.to_owned(), offset, size, address);
        if let Some(&id) = known.get(&key) {
            return Some(id);
        }
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: the name is copied.
        let id = unsafe { ffi::pt_iscache_add_file(self.cache, name.as_ptr(), offset, size, address) };
        if id <= 0 {
            return None;
        }
        known.insert(key, id);
        Some(id)
    }

    /// Code of a section. Returns how many bytes there were.
    pub fn read(&self, id: i32, address: u64, buffer: &mut [u8]) -> usize {
        // SAFETY: writes at most the buffer's size.
        let n = unsafe {
            ffi::pt_iscache_read(self.cache, buffer.as_mut_ptr(), buffer.len() as u64, id, address)
        };
        usize::try_from(n).unwrap_or(0)
    }
}

impl Drop for Sections {
    fn drop(&mut self) {
        // SAFETY: images hold references of their own to what they use.
        unsafe { ffi::pt_iscache_free(self.cache) };
    }
}

/// Code that is in no file: one in memory, which libipt opens by name.
pub struct MemoryFile {
    file: File,
    end: u64,
}

impl MemoryFile {
    pub fn new() -> Result<Self> {
        // SAFETY: a constant string; a new file descriptor is owned by nobody else.
        let file = unsafe {
            let fd = libc::memfd_create(c"nsight-decode".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(Error::memory(std::io::Error::last_os_error()));
            }
            File::from_raw_fd(fd)
        };
        Ok(Self { file, end: 0 })
    }

    /// Where the bytes lie.
    pub fn push(&mut self, bytes: &[u8]) -> Result<u64> {
        self.file.write_all(bytes).map_err(Error::memory)?;
        let at = self.end;
        self.end += bytes.len() as u64;
        Ok(at)
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}
