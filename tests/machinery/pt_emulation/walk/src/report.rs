// SPDX-License-Identifier: GPL-2.0-only
//! Figures of a walk, and the errors of the log.

use std::collections::BTreeMap;

use serde::Serialize;

/// A transition that the code does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unexpected {
    pub cpu: usize,
    /// Instructions before it, in the whole log.
    pub instructions: u64,
    /// Address of the last instruction that started.
    pub from: String,
    pub to: String,
    pub what: String,
}

const LISTED: usize = 20;

#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub instructions: u64,
    pub blocks: u64,
    /// Events by kind.
    pub events: BTreeMap<&'static str, u64>,
    pub transitions: u64,
    pub n_unexpected: u64,
    /// The first unexpected transitions.
    pub unexpected: Vec<Unexpected>,
    /// Blocks whose bytes do not decode to the number of instructions that the emulator reports.
    pub undecodable: u64,
    /// Executions of blocks that the log does not define.
    pub undefined: u64,
    pub tsc_readings: usize,
    /// Largest difference, in ticks, between a TSC reading and the instruction count since the last one.
    pub tsc_max_disagreement: u64,
    pub tsc_disagreements: u64,
    /// Intervals between wake-ups in which nothing read the TSC.
    pub uncertain_intervals: u64,
    /// Events that would have gone back in time; their times were raised.
    pub held_back: u64,
    /// Bytes of code that changed after they were executed.
    pub code_changed: u64,
    pub was_cut: bool,
}

impl Report {
    pub(crate) fn unexpected(&mut self, make: impl FnOnce() -> Unexpected) {
        self.n_unexpected += 1;
        if self.unexpected.len() < LISTED {
            self.unexpected.push(make());
        }
    }

    /// Whether the log can be the record of an execution.
    pub fn is_consistent(&self) -> bool {
        self.n_unexpected == 0 && self.undecodable == 0 && self.undefined == 0
    }

    /// Branches that retired, of every kind.
    pub fn branches(&self) -> u64 {
        const BRANCHES: [&str; 7] = ["cond", "jump", "call", "indirect jump", "indirect call", "ret", "far"];
        BRANCHES.iter().filter_map(|kind| self.events.get(kind)).sum()
    }
}
