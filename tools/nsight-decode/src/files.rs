// SPDX-License-Identifier: GPL-2.0-only
//! Opens files that a recording names, below the root that the user gave. The author of the recording may have chosen
//! both the names and the targets of links below that root.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

/// Text files of a kernel are not larger: 1 GiB.
const MAX_TEXT: u64 = 1 << 30;
/// Opening a pipe without a writer, or a terminal, must not block the program.
const FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;

/// A regular file of `root`, and its path without links. Absolute links and .. stay below the root, as they did on the
/// recorded machine.
pub fn open_below(root: &Path, path: &Path) -> io::Result<(File, PathBuf)> {
    let directory = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(root)?;
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: zeros are valid for each field.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (FLAGS | libc::O_RDONLY) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: name and structure outlive the call; nothing else owns the new file descriptor.
    let file = unsafe {
        let size = std::mem::size_of::<libc::open_how>();
        let fd = libc::syscall(libc::SYS_openat2, directory.as_raw_fd(), name.as_ptr(), &raw const how, size);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd as i32)
    };
    let place = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok((regular(file)?, place))
}

/// A regular file that the user named.
pub fn open(path: &Path) -> io::Result<File> {
    regular(fs::OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("no regular file"))
    }
}

/// The whole text of a file such as kallsyms, until the program ends; a file below /proc does not report its length.
pub fn text(file: File) -> io::Result<&'static [u8]> {
    let length = file.metadata()?.len();
    // SAFETY: as for perf.data: the file is not written while it is read.
    match (1..=MAX_TEXT).contains(&length).then(|| unsafe { Mmap::map(&file) }) {
        Some(Ok(map)) => Ok(Box::leak(Box::new(map))),
        _ => read(file).map(|text| &*text.leak()),
    }
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if file.take(MAX_TEXT + 1).read_to_end(&mut text)? as u64 > MAX_TEXT {
        return Err(io::Error::other("larger than 1 GiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Directory;

    #[test]
    fn links_and_parents_stay_below_the_root() {
        let directory = Directory::new();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("usr/lib/a"), "inside").unwrap();
        fs::write(directory.path().join("secret"), "outside").unwrap();
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink(directory.path().join("secret"), root.join("out")).unwrap();
        symlink("/proc/self/fd/0", root.join("magic")).unwrap();
        let (file, place) = open_below(&root, Path::new("lib/a")).unwrap();
        assert_eq!(read(file).unwrap(), b"inside");
        assert_eq!(place, fs::canonicalize(root.join("usr/lib/a")).unwrap());
        assert!(open_below(&root, Path::new("../../usr/../usr/lib/a")).is_ok());
        for name in ["out", "../secret", "magic"] {
            assert!(open_below(&root, Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let directory = Directory::new();
        let pipe = directory.path().join("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(open_below(directory.path(), Path::new("pipe")).is_err());
        assert!(
            open(&pipe).is_err() && open(directory.path()).is_err() && open(Path::new("/dev/zero")).is_err()
        );
        assert!(open_below(Path::new("/"), Path::new("dev/zero")).is_err());
    }
}
