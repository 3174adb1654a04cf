// SPDX-License-Identifier: GPL-2.0-only
//! Builds the table of calls from a stream of edges.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::account::Account;
use super::stack::{Core, Saved, MOST_THREADS};
use super::table::Table;
use super::texts::Texts;
use crate::edges::{Edge, Event, Sink, ThreadName};
use crate::error::Result;
use crate::losses::Loss;
use crate::thread_pool::ThreadPool;

/// Takes edges and events, those of each core in time order, and writes the table.
pub struct Builder {
    texts: Texts,
    table: Table,
    cores: BTreeMap<i32, Core>,
    /// Threads whose core is not known: each has its own buffer, and a loss in it concerns no other thread.
    threads: BTreeMap<i32, Core>,
    saved: Saved,
    /// How often open calls were cut because too many rows waited for their end.
    cuts: u64,
    pub account: Account,
}

impl Builder {
    /// `directory` gets `calls/cpu-<n>.parquet` and `calls.json`. The threads of `pool` make the contents of the files.
    pub fn new(directory: &Path, pool: Arc<ThreadPool>) -> Result<Self> {
        Ok(Self {
            texts: Texts::default(),
            table: Table::create(directory, pool)?,
            cores: BTreeMap::new(),
            threads: BTreeMap::new(),
            saved: Saved::default(),
            cuts: 0,
            account: Account::default(),
        })
    }

    pub fn finish(mut self) -> Result<Account> {
        for core in self.threads.values_mut().chain(self.cores.values_mut()) {
            core.finish();
            self.table.write(core, &self.texts)?;
            self.account.granularity.merge(&core.granularity);
            self.account.losses.add(Loss::CallsForgotten, core.forgotten);
        }
        self.account.losses.add(Loss::CallsCut, self.cuts);
        self.account.rows = self.table.finish(&self.account)?;
        Ok(self.account)
    }
}

impl Sink for Builder {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        let n_cores = self.cores.len() + self.threads.len();
        let core = if edge.cpu >= 0 {
            self.cores.entry(edge.cpu).or_insert_with(|| Core::new(edge.cpu))
        } else {
            let n = self.threads.len();
            // Beyond the limit, further threads share one.
            let full = n >= MOST_THREADS && !self.threads.contains_key(&edge.tid);
            let tid = self.threads.keys().next_back().copied().filter(|_| full).unwrap_or(edge.tid);
            self.threads.entry(tid).or_insert_with(|| Core::of_thread(n as i64, edge.pid, edge.tid))
        };
        core.edge(edge, &mut self.texts, &mut self.saved);
        if core.is_full(n_cores) {
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
        let of_cpu = self.cores.get_mut(&event.cpu).filter(|_| event.cpu >= 0);
        // If the event has no thread either, it may concern any of them.
        let of_threads =
            self.threads.iter_mut().filter(|(&tid, _)| event.cpu < 0 && (event.tid < 0 || event.tid == tid));
        for core in of_cpu.into_iter().chain(of_threads.map(|(_, core)| core)) {
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
