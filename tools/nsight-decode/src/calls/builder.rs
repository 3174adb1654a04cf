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

/// Limit for the rows that are kept, some 80 bytes each: of all cores together, because most cores switch threads
/// often, which completes their rows.
const MOST_ROWS: usize = 5 << 18;

/// Takes edges and events, those of each core in time order, and writes the table.
pub struct Builder {
    texts: Texts,
    table: Table,
    cores: BTreeMap<i32, Core>,
    /// Threads whose core is not known: each has its own buffer, and a loss in it concerns no other thread.
    threads: BTreeMap<i32, Core>,
    saved: Saved,
    /// Rows of all cores and threads that are not written yet.
    n_rows: usize,
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
            n_rows: 0,
            cuts: 0,
            account: Account::default(),
        })
    }

    /// Writes the rows of the core that has most of them.
    fn make_room(&mut self) -> Result<()> {
        let all = self.cores.values_mut().chain(self.threads.values_mut());
        let Some(core) = all.max_by_key(|core| core.n_rows()) else { return Ok(()) };
        let before = core.n_rows();
        if core.is_held() {
            core.cut(&mut self.texts);
            self.cuts += 1;
        }
        self.table.write(core, &self.texts)?;
        self.n_rows = self.n_rows + core.n_rows() - before;
        Ok(())
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
        let before = core.n_rows();
        core.edge(edge, &mut self.texts, &mut self.saved);
        if core.is_deep() {
            core.cut(&mut self.texts);
            self.cuts += 1;
        }
        if core.is_ready(n_cores) {
            self.table.write(core, &self.texts)?;
        }
        self.n_rows = self.n_rows + core.n_rows() - before;
        if self.n_rows >= MOST_ROWS {
            self.make_room()?;
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
            let before = core.n_rows();
            core.event(event, &mut self.texts);
            self.n_rows += core.n_rows() - before;
        }
        // Marks are rows, too, and a trace may have any number of them between two edges.
        if self.n_rows >= MOST_ROWS {
            self.make_room()?;
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

    fn takes_switches(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::Kind;

    #[test]
    fn calls_of_the_core_with_most_rows_are_cut() {
        let directory = crate::scratch::Directory::new();
        let mut builder = Builder::new(directory.path(), Arc::new(ThreadPool::new(1))).unwrap();
        builder
            .symbols(&[("".into(), "".into()), ("main".into(), "".into()), ("leaf".into(), "".into())])
            .unwrap();
        let mut time = 0;
        let mut call = |builder: &mut Builder, cpu: i32| {
            time += 1;
            let call = Edge {
                time,
                from: 0x1000,
                to: 0x2000,
                pid: 7,
                tid: 7 + cpu,
                cpu,
                from_sym: 1,
                to_sym: 2,
                kind: Kind::Call,
            };
            builder.edge(&call).unwrap();
            builder
                .edge(&Edge { from: 0x2001, to: 0x1005, from_sym: 2, to_sym: 1, kind: Kind::Return, ..call })
                .unwrap();
        };
        // The rows of the thread and of main, and one for each call, until one too many.
        (0..1000).for_each(|_| call(&mut builder, 1));
        (0..MOST_ROWS - 1000 - 5).for_each(|_| call(&mut builder, 0));
        assert_eq!((builder.n_rows, builder.cuts), (MOST_ROWS - 1, 0));
        call(&mut builder, 0);
        assert_eq!(builder.cuts, 1);
        // On the other core, and of the calls that were cut: thread and main; and the call, which came after the cut.
        assert_eq!((builder.cores[&1].n_rows(), builder.cores[&0].n_rows(), builder.n_rows), (1002, 3, 1005));
        let rows = builder.finish().unwrap().rows;
        assert_eq!(rows, (MOST_ROWS + 3) as u64);
    }

    #[test]
    fn a_file_with_many_row_groups_is_continued_in_another() {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        use parquet::record::RowAccessor;

        let directory = crate::scratch::Directory::new();
        let mut builder = Builder::new(directory.path(), Arc::new(ThreadPool::new(1))).unwrap();
        builder.table.most_groups = 5;
        builder.symbols(&[("".into(), "".into()), ("a".into(), "".into()), ("b".into(), "".into())]).unwrap();
        // Two threads take turns on core 0; rows of a thread, of a and of b. Core 1 has few.
        for time in 0..800_000 {
            let cpu = i32::from(time % 7 == 6);
            let tid = 7 + (time / 100 % 2) as i32;
            let (from, to, kind) = (0x1000, 0x2000, Kind::Call);
            let call = Edge { time, from, to, pid: 7, tid, cpu, from_sym: 1, to_sym: 2, kind };
            builder.edge(&call).unwrap();
            let back = Edge { from: to, to: 0x1005, from_sym: 2, to_sym: 1, kind: Kind::Return, ..call };
            builder.edge(&back).unwrap();
            let n = builder.table.n_groups;
            assert!(n <= 8, "{n} row groups");
        }
        let rows = builder.finish().unwrap().rows;

        let mut names: Vec<_> = std::fs::read_dir(directory.path().join("calls"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["cpu-0000.parquet", "cpu-0000_000001.parquet", "cpu-0001.parquet"]);
        let mut found = 0;
        let mut next = [0, 1 << 40];
        for name in names {
            let file = std::fs::File::open(directory.path().join("calls").join(&name)).unwrap();
            let cpu = usize::from(name.starts_with("cpu-0001"));
            let first = next[cpu];
            for row in SerializedFileReader::new(file).unwrap().get_row_iter(None).unwrap() {
                let row = row.unwrap();
                let (call, parent) = (row.get_long(0).unwrap(), row.get_long(1).unwrap());
                assert_eq!(call, next[cpu], "{name}");
                assert!(if call == first { parent == -1 } else { parent == -1 || parent >= first }, "{name}");
                next[cpu] += 1;
                found += 1;
            }
        }
        assert_eq!(found, rows);
    }
}
