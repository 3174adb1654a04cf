// SPDX-License-Identifier: GPL-2.0-only
//! nsight-decode: the command line.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
