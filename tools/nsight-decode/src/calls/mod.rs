// SPDX-License-Identifier: GPL-2.0-only
//! Edges to calls: a stack per thread, cut where its thread leaves the core.
//!
//! Rows nest per core. At depth 0 is the thread; below it, in the order in which they begin,
//! functions, system calls, interrupts and exceptions, and what is not known.

mod account;
mod columns;
mod encode;
mod file;
#[cfg(fuzzing)]
pub mod fuzz;
mod stack;
mod table;
mod texts;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub use account::{Account, Granularity, LOSSES};
pub use file::build;

use crate::crew::Crew;
use crate::edges::{Edge, Event, Sink, ThreadName};
use crate::error::Result;
use stack::Core;
use table::Table;
use texts::Texts;

/// What a row of the table is. In the order of `KINDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Thread,
    Idle,
    Syscall,
    Hardirq,
    Exception,
    Function,
    /// Not decoded, not traced or lost.
    Gap,
    /// The core stood at one instruction.
    Stall,
    Ptwrite,
    Power,
    Frequency,
}

pub const KINDS: [&str; 11] = [
    "thread",
    "idle",
    "syscall",
    "hardirq",
    "exception",
    "function",
    "gap",
    "stall",
    "ptwrite",
    "power",
    "frequency",
];

/// How an end of a call is known. In the order of `KNOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    Measured,
    /// Cut at a context switch, or at the begin or end of the trace.
    Inferred,
    /// In a loss, or before what was traced.
    Missing,
}

pub const KNOWN: [&str; 3] = ["measured", "inferred", "missing"];

/// One row of `calls`. Times in ns of perf's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the enclosing row of this core; -1: none.
    pub parent: i64,
    pub depth: u32,
    pub kind: Kind,
    /// Numbers of texts.
    pub symbol: u32,
    pub dso: u32,
    pub pid: i32,
    pub tid: i32,
    pub start: u64,
    pub end: u64,
    /// Sum of the durations of its children.
    pub children: u64,
    pub start_known: Known,
    pub end_known: Known,
    pub arg: i64,
    pub address: u64,
    /// Gaps and stalls: the last function that was called before, and why.
    pub before: u32,
    pub cause: u32,
}

/// Takes edges and events, of each core in order of time, and writes the table.
pub struct Builder {
    texts: Texts,
    table: Table,
    cores: BTreeMap<i32, Core>,
    saved: stack::Saved,
    pub account: Account,
}

impl Builder {
    /// `folder` gets `calls/cpu-<n>.parquet` and `calls.json`. Threads of `crew` make the files' contents.
    pub fn new(folder: &Path, crew: Arc<Crew>) -> Result<Self> {
        Ok(Self {
            texts: Texts::default(),
            table: Table::create(folder, crew)?,
            cores: BTreeMap::new(),
            saved: stack::Saved::default(),
            account: Account::default(),
        })
    }

    pub fn finish(mut self) -> Result<Account> {
        for core in self.cores.values_mut() {
            core.finish();
            self.table.write(core, &self.texts)?;
            self.account.granularity.merge(&core.granularity);
        }
        self.account.rows = self.table.finish(&self.account)?;
        Ok(self.account)
    }
}

impl Sink for Builder {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        let core = self.cores.entry(edge.cpu).or_insert_with(|| Core::new(edge.cpu));
        core.edge(edge, &mut self.texts, &mut self.saved);
        if core.is_full() {
            core.cut(&mut self.texts);
            self.account.cuts += 1;
        }
        if core.is_ready() {
            self.table.write(core, &self.texts)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.account.event(event);
        if let Some(core) = self.cores.get_mut(&event.cpu) {
            core.event(event, &mut self.texts);
        }
        Ok(())
    }

    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        self.texts.symbols(new);
        Ok(())
    }

    fn names(&mut self, names: &[ThreadName]) -> Result<()> {
        self.texts.names(names);
        Ok(())
    }
}
