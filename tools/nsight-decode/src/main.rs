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

fn main() -> ExitCode {
    // A reader that ends early (head) is no error: end as other programs do.
    // SAFETY: no other code has run yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    memory::prepare();
    match cli::run(cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(e.code)
        }
    }
}
