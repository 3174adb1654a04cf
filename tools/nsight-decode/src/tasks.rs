// SPDX-License-Identifier: GPL-2.0-only
//! Processes and threads over time: their mappings, and their names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::perfdata::{Map, SideBand, TaskEventKind};

/// A mapping, and the time during which it existed.
struct Mapping {
    map: Arc<Map>,
    from: u64,
    to: u64,
}

/// The mappings that a process inherited by fork, while it has changed none of them.
struct Inherited {
    maps: Arc<[Arc<Map>]>,
    from: u64,
    to: u64,
}

#[derive(Default)]
struct Process {
    mappings: Vec<Mapping>,
    inherited: Vec<Inherited>,
    /// The mappings that its children inherit, until they change.
    given: Option<Arc<[Arc<Map>]>>,
    /// The existing mappings, by their begin: used while events are taken in order.
    live: BTreeMap<u64, usize>,
    /// Times of all changes, in order.
    changes: Vec<u64>,
}

impl Process {
    fn changed(&mut self, time: u64) {
        self.given = None;
        if self.changes.last() != Some(&time) {
            self.changes.push(time);
        }
    }

    fn inherit(&mut self, maps: Arc<[Arc<Map>]>, time: u64) {
        self.inherited.push(Inherited { maps: maps.clone(), from: time, to: u64::MAX });
        self.changed(time);
        self.given = Some(maps);
    }

    /// Ends the inherited mappings. Returns those that the process still has.
    fn end_inherited(&mut self, time: u64) -> Option<Arc<[Arc<Map>]>> {
        let last = self.inherited.last_mut().filter(|i| i.to == u64::MAX)?;
        last.to = time;
        Some(last.maps.clone())
    }

    fn give(&mut self) -> Arc<[Arc<Map>]> {
        let own = || self.live.values().map(|&index| self.mappings[index].map.clone()).collect();
        self.given.get_or_insert_with(own).clone()
    }

    fn clear(&mut self, time: u64) {
        self.end_inherited(time);
        for (_, index) in std::mem::take(&mut self.live) {
            self.mappings[index].to = time;
        }
        self.changed(time);
    }

    fn add(&mut self, map: Arc<Map>, time: u64) {
        for inherited in self.end_inherited(time).iter().flat_map(|maps| maps.iter()) {
            self.insert(inherited.clone(), time);
        }
        // Covered parts of old mappings end; parts outside the new mapping remain.
        let covered: Vec<u64> = self
            .live
            .range(..map.end)
            .rev()
            .map_while(|(&begin, &index)| (self.mappings[index].map.end > map.begin).then_some(begin))
            .collect();
        for begin in covered {
            let Some(index) = self.live.remove(&begin) else { continue };
            self.mappings[index].to = time;
            let old = self.mappings[index].map.clone();
            if old.begin < map.begin {
                self.insert(Arc::new(Map { end: map.begin, ..(*old).clone() }), time);
            }
            if old.end > map.end {
                let offset = old.offset.wrapping_add(map.end - old.begin);
                self.insert(Arc::new(Map { begin: map.end, offset, ..(*old).clone() }), time);
            }
        }
        self.insert(map, time);
        self.changed(time);
    }

    fn insert(&mut self, map: Arc<Map>, time: u64) {
        self.live.insert(map.begin, self.mappings.len());
        self.mappings.push(Mapping { map, from: time, to: u64::MAX });
    }
}

/// Names of a thread: begin of each, and its process.
type Names = Vec<(u64, i32, Arc<str>)>;

#[derive(Default)]
pub struct Tasks {
    processes: HashMap<i32, Process>,
    names: HashMap<i32, Names>,
}

impl Tasks {
    pub fn new(side: &SideBand) -> Self {
        let mut tasks = Self::default();
        // Ends of processes do not count: code that still runs is in their mappings, and fork clears them.
        for event in &side.tasks {
            let (time, pid) = (event.time, event.pid);
            match &event.kind {
                TaskEventKind::Map(map) => {
                    tasks.processes.entry(pid).or_default().add(Arc::new(map.clone()), time);
                }
                TaskEventKind::Exec => tasks.processes.entry(pid).or_default().clear(time),
                TaskEventKind::Comm { tid, name } => {
                    tasks.names.entry(*tid).or_default().push((time, pid, name.as_str().into()));
                }
                TaskEventKind::Fork { tid, parent_pid, synthesized } => {
                    tasks.fork(time, pid, *tid, *parent_pid, *synthesized);
                }
            }
        }
        for process in tasks.processes.values_mut() {
            process.live.clear();
            process.given = None;
        }
        tasks
    }

    fn fork(&mut self, time: u64, pid: i32, tid: i32, parent: i32, synthesized: bool) {
        let name = self.names.get(&parent).and_then(|names| names.last()).map(|(_, _, name)| name.clone());
        if let (Some(name), false) = (name, synthesized) {
            self.names.entry(tid).or_default().push((time, pid, name));
        }
        if pid == parent {
            return;
        }
        let parent = self.processes.get_mut(&parent).filter(|_| !synthesized);
        let given = parent.map(Process::give);
        let child = self.processes.entry(pid).or_default();
        child.clear(time);
        if let Some(maps) = given.filter(|maps| !maps.is_empty()) {
            child.inherit(maps, time);
        }
    }

    /// The index of the set of mappings that a process has at a time, and the end of that set. Without any mappings:
    /// (0, end).
    pub fn epoch(&self, pid: i32, time: u64) -> (usize, u64) {
        let Some(process) = self.processes.get(&pid) else { return (0, u64::MAX) };
        let epoch = process.changes.partition_point(|&change| change <= time);
        (epoch, process.changes.get(epoch).copied().unwrap_or(u64::MAX))
    }

    /// The mappings of a process at a time.
    pub fn maps(&self, pid: i32, time: u64) -> Vec<Arc<Map>> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let there = |m: &&Mapping| m.from <= time && time < m.to;
        let own = process.mappings.iter().filter(there).map(|m| &m.map);
        let inherited = process.inherited.iter().filter(|i| i.from <= time && time < i.to);
        own.chain(inherited.flat_map(|i| i.maps.iter())).cloned().collect()
    }

    /// Name of a thread at a time.
    pub fn name(&self, tid: i32, time: u64) -> Option<&Arc<str>> {
        let names = self.names.get(&tid)?;
        let at = names.partition_point(|(since, _, _)| *since <= time);
        names.get(at.saturating_sub(1)).map(|(_, _, name)| name)
    }

    /// The process of a thread; -1 if no record has it.
    pub fn process_of(&self, tid: i32) -> i32 {
        self.names.get(&tid).and_then(|names| names.last()).map_or(-1, |&(_, pid, _)| pid)
    }

    /// (begin, process, thread, name) of all threads.
    pub fn names(&self) -> impl Iterator<Item = (u64, i32, i32, &str)> {
        self.names.iter().flat_map(|(&tid, names)| names.iter().map(move |(t, pid, n)| (*t, *pid, tid, &**n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perfdata::TaskEvent;

    fn map(begin: u64, end: u64, name: &str) -> TaskEventKind {
        TaskEventKind::Map(Map { begin, end, offset: 0x100, name: name.into(), build_id: None })
    }

    fn tasks(events: &[(u64, i32, TaskEventKind)]) -> Tasks {
        let tasks =
            events.iter().map(|(time, pid, kind)| TaskEvent { time: *time, pid: *pid, kind: kind.clone() });
        Tasks::new(&SideBand { tasks: tasks.collect(), ..SideBand::default() })
    }

    fn at(tasks: &Tasks, pid: i32, time: u64) -> Vec<(u64, u64, u64, String)> {
        let mut maps: Vec<_> =
            tasks.maps(pid, time).iter().map(|m| (m.begin, m.end, m.offset, m.name.clone())).collect();
        maps.sort();
        maps
    }

    #[test]
    fn a_mapping_covers_what_was_there_and_leaves_the_rest() {
        let t = tasks(&[(1, 7, map(0x1000, 0x5000, "a")), (2, 7, map(0x2000, 0x3000, "b"))]);
        assert_eq!(at(&t, 7, 1), [(0x1000, 0x5000, 0x100, "a".into())]);
        let rest =
            [(0x1000, 0x2000, 0x100, "a"), (0x2000, 0x3000, 0x100, "b"), (0x3000, 0x5000, 0x2100, "a")];
        assert_eq!(at(&t, 7, 2), rest.map(|(b, e, o, n)| (b, e, o, n.to_owned())));
        assert_eq!((t.epoch(7, 0), t.epoch(7, 1), t.epoch(7, 9)), ((0, 1), (1, 2), (2, u64::MAX)));
    }

    #[test]
    fn a_child_has_its_parents_mappings_until_it_executes_another_program() {
        let fork = TaskEventKind::Fork { tid: 8, parent_pid: 7, synthesized: false };
        let t = tasks(&[
            (1, 7, map(0x1000, 0x2000, "a")),
            (5, 8, fork),
            (6, 7, map(0x9000, 0xa000, "later")),
            (8, 8, TaskEventKind::Exec),
            (9, 8, map(0x3000, 0x4000, "b")),
        ]);
        assert_eq!(at(&t, 8, 4), []);
        assert_eq!(at(&t, 8, 7), [(0x1000, 0x2000, 0x100, "a".to_owned())]);
        assert_eq!(at(&t, 8, 8), []);
        assert_eq!(at(&t, 8, 9), [(0x3000, 0x4000, 0x100, "b".to_owned())]);
        assert_eq!(at(&t, 7, 9).len(), 2);
    }

    #[test]
    fn a_process_that_perf_tells_of_inherits_nothing() {
        let fork = TaskEventKind::Fork { tid: 8, parent_pid: 7, synthesized: true };
        let t = tasks(&[(0, 7, map(0x1000, 0x2000, "a")), (0, 8, fork)]);
        assert_eq!(at(&t, 8, 1), []);
    }

    #[test]
    fn names_change_over_time() {
        let comm = |name: &str| TaskEventKind::Comm { tid: 8, name: name.into() };
        let t = tasks(&[(0, 7, comm("old")), (10, 7, comm("new"))]);
        assert_eq!((t.name(8, 9).unwrap().as_ref(), t.name(8, 10).unwrap().as_ref()), ("old", "new"));
        assert_eq!((t.process_of(8), t.process_of(9)), (7, -1));
    }
}
