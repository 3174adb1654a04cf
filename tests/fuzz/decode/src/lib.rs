// SPDX-License-Identifier: GPL-2.0-only
//! Shared parts of the targets: files in memory, a fixed program and kernel, sinks that check their input.

pub mod calls;
pub mod elf;
pub mod perf_data;
pub mod program;
pub mod run;
pub mod scratch;

/// Settings of AddressSanitizer: it keeps freed memory in a smaller quarantine than the default and leaves stacks
/// unchanged. Leaks are found by the memory limit.
#[no_mangle]
pub extern "C" fn __asan_default_options() -> *const libc::c_char {
    c"quarantine_size_mb=16:detect_stack_use_after_return=0:detect_leaks=0".as_ptr()
}
