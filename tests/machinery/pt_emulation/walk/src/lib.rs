// SPDX-License-Identifier: GPL-2.0-only
//! Converts the observer's log to what each CPU did, branch by branch, with exact times.
//!
//! The walk checks every transition from one block to the next against the code. If the code does not allow a transition,
//! the log is not the record of an execution.

pub mod block;
pub mod code;
pub mod intervals;
pub mod report;
pub mod time;
pub mod transition;
mod walker;

use std::io::Read;

use pt_events::Event;
use pt_log::Reader;

pub use code::Code;
pub use report::Report;

/// Length of the instruction at the start of `bytes`.
pub fn length(bytes: &[u8]) -> Option<u64> {
    pt_insn::decode(bytes).map(|insn| insn.len.into())
}

/// The contents of a log.
pub struct Walk {
    pub tsc_khz: u64,
    /// Events of each CPU, in order; times never decrease.
    pub cpus: Vec<Vec<Event>>,
    pub report: Report,
    pub code: Code,
}

/// Walk a log from its beginning to its end, or to the place where it was cut.
///
/// Err: the log is damaged. A log that contradicts itself is not an error: see `report`.
pub fn walk<R: Read>(mut log: Reader<R>) -> Result<Walk, pt_log::Error> {
    let mut walker = walker::Walker::new(log.header());
    for record in log.by_ref() {
        walker.record(record?);
    }
    Ok(walker.finish(log.was_cut()))
}
