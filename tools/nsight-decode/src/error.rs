// SPDX-License-Identifier: GPL-2.0-only
//! Errors that end a run: what is wrong, and what helps.

use std::fmt;
use std::path::Path;

/// Exit codes of the program; its man page lists them.
pub mod exit {
    pub const BUG: u8 = 1;
    pub const USAGE: u8 = 2;
    /// The input cannot be used.
    pub const INPUT: u8 = 3;
    /// The input is fine, but contains nothing that this program decodes.
    pub const NO_PT: u8 = 4;
    /// Output cannot be written, or memory ran out.
    pub const OUTPUT: u8 = 5;
}

/// The data between two PSB packets are decoded at once.
pub const MEMORY_HINT: &str = "fewer --jobs, a --time window, or a recording with a smaller psb_period";

#[derive(Debug)]
pub struct Error {
    pub what: String,
    pub hint: &'static str,
    pub code: u8,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn input(path: &Path, what: impl fmt::Display, hint: &'static str) -> Self {
        Self { what: format!("{}: {what}", path.display()), hint, code: exit::INPUT }
    }

    pub fn no_pt(path: &Path, what: impl fmt::Display, hint: &'static str) -> Self {
        Self { code: exit::NO_PT, ..Self::input(path, what, hint) }
    }

    pub fn output(path: &Path, what: impl fmt::Display) -> Self {
        Self { code: exit::OUTPUT, ..Self::input(path, what, "is the disk full, the directory writable?") }
    }

    pub fn memory(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), hint: MEMORY_HINT, code: exit::OUTPUT }
    }

    /// Something that must never happen in this program.
    pub fn bug(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), hint: "a bug: please report it with the file", code: exit::BUG }
    }

    pub fn usage(what: impl fmt::Display, hint: &'static str) -> Self {
        Self { what: what.to_string(), hint, code: exit::USAGE }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\nhint: {}", self.what, self.hint)
    }
}
