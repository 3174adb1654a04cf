// SPDX-License-Identifier: GPL-2.0-only
//! nsight-decode: the command line.

mod cli;
mod info;
mod lost;
mod memory;
mod numbers;
mod source;

use std::process::ExitCode;

use clap::Parser;
use nsight_decode::error::exit;

/// Files are mapped: a page behind the new end of one cannot be read, and the program cannot go on.
extern "C" fn file_was_cut(_: libc::c_int) {
    const TEXT: &str =
        "error: a file became shorter while it was read\nhint: decode it when nothing writes to it\n";
    // SAFETY: both may be called in a signal handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len());
        libc::_exit(exit::INPUT.into())
    }
}

fn main() -> ExitCode {
    // A reader that ends early (head) is no error: end as other programs do.
    // SAFETY: no other code has run yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::signal(libc::SIGBUS, file_was_cut as *const () as libc::sighandler_t);
    }
    memory::prepare();
    match cli::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(e.code)
        }
    }
}
