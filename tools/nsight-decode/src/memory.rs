// SPDX-License-Identifier: GPL-2.0-only
//! When memory runs out, the program ends with the exit code for that. Rust's default is SIGABRT, which looks like a
//! crash.

use std::alloc::{GlobalAlloc, Layout, System};

use nsight_decode::error::{exit, MEMORY_HINT};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

struct Allocator;

/// From this size on, memory is returned to the kernel when it is freed. The system's allocator keeps ever larger pieces
/// otherwise, a quarter of all memory with 64 cores.
#[cfg(target_env = "gnu")]
const RETURNED: libc::c_int = 128 << 10;

/// Before any thread is started.
pub fn prepare() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only changes the allocator's settings. If it fails, more memory is in use.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED);
    }
}

/// If there is no memory, ends the process without destructors and without allocation: no other thread must meet the
/// locks of this one.
fn checked(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null() {
        // SAFETY: constant texts; nothing runs afterwards.
        unsafe {
            for text in ["error: no memory\nhint: ", MEMORY_HINT, "\n"] {
                libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
            }
            libc::_exit(exit::OUTPUT.into());
        }
    }
    pointer
}

// SAFETY: as for the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        checked(System.alloc(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        checked(System.alloc_zeroed(layout))
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        checked(System.realloc(pointer, layout, size))
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        System.dealloc(pointer, layout);
    }
}
