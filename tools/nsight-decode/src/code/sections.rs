// SPDX-License-Identifier: GPL-2.0-only
//! Code in the form that libipt reads: pieces of files at addresses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapOptions;

use crate::error::{Error, Result};
use crate::libipt;

/// Limit for libipt's mapped code and block cache, bytes.
const CACHE_LIMIT: u64 = 1 << 30;
/// Larger pieces are split: for a piece that is used, libipt allocates four times its size.
const LARGEST: u64 = 8 << 20;

/// Bytes of a file at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    pub path: Arc<Path>,
    pub offset: u64,
    pub size: u64,
    pub address: u64,
}

/// libipt's cache of sections, for one thread. Threads could share it, but libipt locks a section whenever it reads an
/// instruction: two threads were hardly faster than one.
pub struct Sections {
    cache: *mut libipt::Iscache,
    known: RefCell<HashMap<Piece, i32>>,
    /// libipt ran out of memory: the code only seems to be missing.
    short: Cell<bool>,
}

/// libipt numbers sections with 16 bits.
const MOST: usize = 50_000;

impl Sections {
    pub fn new() -> Result<Self> {
        // SAFETY: a name is optional; NULL means no memory.
        let cache = unsafe { libipt::pt_iscache_alloc(std::ptr::null()) };
        if cache.is_null() {
            return Err(Error::memory("libipt: no memory for a section cache"));
        }
        unsafe { libipt::pt_iscache_set_limit(cache, CACHE_LIMIT) };
        Ok(Self { cache, known: RefCell::default(), short: Cell::default() })
    }

    /// Whether no more sections can be numbered.
    pub fn is_full(&self) -> bool {
        self.known.borrow().len() >= MOST
    }

    /// Notes the status that a libipt function returned.
    fn told(&self, status: i32) {
        self.short.set(self.short.get() || status == -libipt::error::NOMEM);
    }

    /// Whether libipt had enough memory for all requests.
    pub fn check(&self) -> Result<()> {
        match self.short.get() {
            true => Err(Error::memory("libipt: no memory for code")),
            false => Ok(()),
        }
    }

    /// Makes a section part of an image.
    pub(crate) fn add_to(&self, image: *mut libipt::Image, id: i32) {
        // SAFETY: both exist. No address space means: for all of them.
        self.told(unsafe { libipt::pt_image_add_cached(image, self.cache, id, std::ptr::null()) });
    }

    /// Numbers of the sections of a piece. Empty: the file cannot be used.
    pub fn add(&self, piece: &Piece) -> Vec<i32> {
        let mut ids = Vec::new();
        let mut done = 0;
        while done < piece.size {
            // Split at addresses that are multiples of `LARGEST`, so that neighbouring pieces meet at the same places.
            let address = piece.address.wrapping_add(done);
            let size = (LARGEST - address % LARGEST).min(piece.size - done);
            let offset = piece.offset.saturating_add(done);
            ids.extend(self.add_one(Piece { path: piece.path.clone(), offset, size, address }));
            done += size;
        }
        ids
    }

    fn add_one(&self, piece: Piece) -> Option<i32> {
        let mut known = self.known.borrow_mut();
        if let Some(&id) = known.get(&piece) {
            return Some(id);
        }
        let name = CString::new(piece.path.as_os_str().as_bytes()).ok()?;
        let Piece { offset, size, address, .. } = piece;
        // SAFETY: the name is copied.
        let id = unsafe { libipt::pt_iscache_add_file(self.cache, name.as_ptr(), offset, size, address) };
        self.told(id);
        if id <= 0 {
            return None;
        }
        known.insert(piece, id);
        Some(id)
    }

    /// Reads code of a section. Returns the number of bytes.
    pub fn read(&self, id: i32, address: u64, buffer: &mut [u8]) -> usize {
        // SAFETY: writes at most the buffer's size.
        let n = unsafe {
            libipt::pt_iscache_read(self.cache, buffer.as_mut_ptr(), buffer.len() as u64, id, address)
        };
        self.told(n);
        usize::try_from(n).unwrap_or(0)
    }
}

impl Drop for Sections {
    fn drop(&mut self) {
        // SAFETY: images hold separate references to what they use.
        unsafe { libipt::pt_iscache_free(self.cache) };
    }
}

/// Bytes that are copied at a time.
const COPIED: u64 = 256 << 10;

/// Code that no file contains: a file in memory, which libipt opens by name.
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

    /// Appends bytes. Returns their offset.
    pub fn push(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.end;
        self.put(at, bytes)?;
        self.end += bytes.len() as u64;
        Ok(at)
    }

    /// Overwrites the bytes at an offset.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(Error::memory)
    }

    /// Appends bytes of a file, and returns their offset.
    pub fn copy(&mut self, from: &File, offset: u64, size: u64) -> std::io::Result<u64> {
        let at = self.end;
        // Mapped, they are copied once; a file below /proc can only be read.
        // SAFETY: as for perf.data: the file is not written while it is read.
        let map = unsafe { MmapOptions::new().offset(offset).len(size as usize).map(from) };
        let held = from.metadata()?.len();
        match map.ok().filter(|_| offset + size <= held) {
            Some(map) => self.file.write_all_at(&map, at)?,
            None => self.copy_pieces(from, offset, size)?,
        }
        self.end += size;
        Ok(at)
    }

    /// In pieces that fit into the caches.
    fn copy_pieces(&self, from: &File, offset: u64, size: u64) -> std::io::Result<()> {
        let mut buffer = vec![0; size.min(COPIED) as usize];
        let mut done = 0;
        while done < size {
            let piece = &mut buffer[..(size - done).min(COPIED) as usize];
            from.read_exact_at(piece, offset + done)?;
            self.file.write_all_at(piece, self.end + done)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    pub fn path(&self) -> Arc<Path> {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd())).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Directory;

    #[test]
    fn what_is_mapped_and_what_is_read_is_copied_alike() {
        let directory = Directory::new();
        let path = directory.path().join("kcore");
        let bytes: Vec<u8> = (0..3 * COPIED + 5).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let mut memory = MemoryFile::new().unwrap();
        let size = bytes.len() as u64 - 3;
        assert_eq!(memory.copy(&file, 3, size).unwrap(), 0);
        memory.copy_pieces(&file, 3, size).unwrap();
        let mut both = vec![0; 2 * size as usize];
        memory.file.read_exact_at(&mut both, 0).unwrap();
        assert_eq!(both, [&bytes[3..], &bytes[3..]].concat());
        // A cut file.
        assert!(memory.copy(&file, 4, size).is_err());
    }
}
