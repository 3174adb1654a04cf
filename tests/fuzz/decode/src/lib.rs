// SPDX-License-Identifier: GPL-2.0-only
//! What the targets have in common: files in memory, a fixed program and kernel, sinks that check what they get.

pub mod calls;
pub mod elf;
pub mod perf_data;
pub mod program;
pub mod run;
pub mod scratch;

/// Settings of AddressSanitizer: what was freed is kept in less memory than it would be, stacks are as they are without it, and
/// leaks are found by the limit of memory.
#[no_mangle]
pub extern "C" fn __asan_default_options() -> *const libc::c_char {
    c"quarantine_size_mb=16:detect_stack_use_after_return=0:detect_leaks=0".as_ptr()
}
