// SPDX-License-Identifier: GPL-2.0-only
//! A stream of edges to the table of calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::account::Account;
use super::stack::{Core, Saved};
use super::table::Table;
use super::texts::Texts;
use crate::edges::{Edge, Event, Sink, ThreadName};
use crate::error::Result;
use crate::losses::Loss;
use crate::thread_pool::ThreadPool;

/// Takes edges and events, of each core in order of time, and writes the table.
pub struct Builder {
    texts: Texts,
    table: Table,
    cores: BTreeMap<i32, Core>,
    saved: Saved,
    /// Times at which open calls were cut, since too many rows waited for their end.
    cuts: u64,
    pub account: Account,
}

impl Builder {
    /// `directory` gets `calls/cpu-<n>.parquet` and `calls.json`. Threads of `pool` make the files' contents.
    pub fn new(directory: &Path, pool: Arc<ThreadPool>) -> Result<Self> {
        Ok(Self {
            texts: Texts::default(),
            table: Table::create(directory, pool)?,
            cores: BTreeMap::new(),
            saved: Saved::default(),
            cuts: 0,
            account: Account::default(),
        })
    }

    pub fn finish(mut self) -> Result<Account> {
        for core in self.cores.values_mut() {
            core.finish();
            self.table.write(core, &self.texts)?;
            self.account.granularity.merge(&core.granularity);
        }
        self.account.losses.add(Loss::CallsCut, self.cuts);
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
            self.cuts += 1;
        }
        if core.is_ready() {
            self.table.write(core, &self.texts)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.account.losses.event(event);
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
