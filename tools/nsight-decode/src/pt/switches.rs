// SPDX-License-Identifier: GPL-2.0-only
//! Which thread runs on a CPU, from its context switches.
//!
//! The kernel reports a switch shortly before (out) and shortly after (in) it happens. If PT shows __switch_to() in
//! between, the threads change there, as in perf; otherwise, they change by time.

use crate::perfdata::{Switch, SwitchReader};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub pid: i32,
    pub tid: i32,
}

pub const UNKNOWN: Task = Task { pid: -1, tid: -1 };

/// One context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub out: u64,
    pub into: u64,
    pub before: Task,
    pub after: Task,
}

fn own(record: &Switch) -> Task {
    Task { pid: record.pid, tid: record.tid }
}

fn other(record: &Switch) -> Option<Task> {
    record.other.map(|(pid, tid)| Task { pid, tid })
}

/// The switches that the records of a CPU show, one after the other. What a record shows depends on the one before it alone, so
/// they can begin at any record.
pub struct Pairs<'a> {
    records: Option<SwitchReader<'a>>,
    /// The next record, and the one before it.
    next: usize,
    before: Option<Switch>,
    /// The second of two switches that a record shows.
    waiting: Option<Pair>,
}

impl<'a> Pairs<'a> {
    fn new(records: Option<SwitchReader<'a>>) -> Self {
        Self { records, next: 0, before: None, waiting: None }
    }

    fn get(&mut self, index: usize) -> Option<Switch> {
        self.records.as_mut()?.get(index)
    }

    /// Continues behind the records up to a time. Returns the thread that runs by what they show.
    fn seek(&mut self, time: u64) -> Option<Task> {
        self.next = self.records.as_mut().map_or(0, |records| records.n_until(time));
        self.waiting = None;
        self.before = self.next.checked_sub(1).and_then(|at| self.get(at));
        let last = self.before?;
        if !last.out {
            return Some(own(&last));
        }
        // A switch whose second half did not come.
        for at in (0..self.next - 1).rev().take(MOST_LOST) {
            let earlier = self.get(at)?;
            let task = if earlier.out { other(&earlier) } else { Some(own(&earlier)) };
            if task.is_some() {
                return task;
            }
        }
        None
    }
}

impl Iterator for Pairs<'_> {
    type Item = Pair;

    fn next(&mut self) -> Option<Pair> {
        if let Some(pair) = self.waiting.take() {
            return Some(pair);
        }
        loop {
            let record = self.get(self.next);
            let open = self.before.filter(|before| before.out);
            // Its other half was lost.
            let half =
                |open: &Switch, after| Pair { out: open.time, into: open.time, before: own(open), after };
            let Some(record) = record else {
                self.before = None;
                let open = open.as_ref()?;
                return Some(half(open, other(open)?));
            };
            let before = self.before.replace(record);
            self.next += 1;
            let lost = open.as_ref().and_then(|open| Some(half(open, other(open)?)));
            if record.out {
                match lost {
                    Some(pair) => return Some(pair),
                    None => continue,
                }
            }
            let known = |first: Option<Task>, second| first.or(second).unwrap_or(UNKNOWN);
            let pair = |out, before| Pair { out, into: record.time, before, after: own(&record) };
            match (open, lost) {
                // Halves of two switches: the second half of the first and the first half of the second were lost.
                (Some(_), Some(first)) if first.after.tid != record.tid => {
                    self.waiting = Some(pair(record.time, known(other(&record), Some(first.after))));
                    return Some(first);
                }
                (Some(open), _) => return Some(pair(open.time, own(&open))),
                (None, _) => {
                    return Some(pair(record.time, known(other(&record), before.as_ref().map(own))));
                }
            }
        }
    }
}

/// So many halves of switches in a row that name no other thread are read back.
const MOST_LOST: usize = 1 << 12;

/// Follows the context switches of a CPU through its trace.
pub struct Cursor<'a> {
    pairs: Pairs<'a>,
    /// The next switch, and the one after it.
    next: Option<Pair>,
    second: Option<Pair>,
    pub task: Task,
    /// How far packets' times may be off.
    slack: u64,
    /// The time at which the next switch is certainly over.
    pub deadline: u64,
    /// Tracing began between the halves of a switch: the thread becomes known later.
    pub unsure: bool,
}

impl<'a> Cursor<'a> {
    /// `start`: the thread that ran when tracing began, if no switch shows it.
    pub fn new(records: Option<SwitchReader<'a>>, time: u64, start: Task, slack: u64) -> Self {
        let mut pairs = Pairs::new(records);
        let mut task = pairs.seek(time);
        let mut next = pairs.next();
        while let Some(over) = next.filter(|pair| pair.into <= time) {
            task = Some(over.after);
            next = pairs.next();
        }
        let second = pairs.next();
        let task = task.or(next.map(|first| first.before)).unwrap_or(start);
        let unsure = next.is_some_and(|p| p.out <= time);
        let mut cursor = Self { pairs, next, second, task, slack, deadline: 0, unsure };
        cursor.set_deadline();
        cursor
    }

    fn set_deadline(&mut self) {
        self.deadline = self.next.map_or(u64::MAX, |p| p.into.saturating_add(self.slack));
    }

    fn apply(&mut self) {
        self.task = self.next.map_or(self.task, |pair| pair.after);
        (self.next, self.second) = (self.second, self.pairs.next());
        self.unsure = false;
        self.set_deadline();
    }

    /// The CPU is in __switch_to(). Returns true if another thread runs now.
    pub fn switch_to(&mut self, time: u64) -> bool {
        // If the following switch has begun, this one is over.
        while self.second.is_some_and(|p| p.out <= time) {
            self.apply();
        }
        let due = self.next.is_some_and(|p| p.out <= time.saturating_add(self.slack));
        if due {
            self.apply();
        }
        due
    }

    /// Time advances to `time`. Returns true if a switch that was not seen is over.
    pub fn pass(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.next.is_some() && time >= self.deadline {
            self.apply();
            passed = true;
        }
        passed
    }

    /// Decoding resumes: all switches up to `time` are over.
    pub fn resume(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.next.is_some_and(|p| p.into <= time) {
            self.apply();
            passed = true;
        }
        passed
    }

    /// Whether `time` lies between the halves of a switch.
    pub fn is_amid(&self, time: u64) -> bool {
        self.next.is_some_and(|p| p.out <= time && time < p.into)
    }

    /// User code runs, so no switch is in progress.
    pub fn user(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.next.is_some_and(|p| p.out <= time) {
            self.apply();
            passed = true;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perfdata::Switches;

    fn recorded(records: &[Switch]) -> Switches {
        let mut switches = Switches::default();
        records.iter().for_each(|&record| switches.push(0, record));
        switches.finish().unwrap();
        switches
    }

    fn pairs(records: &[Switch]) -> Vec<Pair> {
        Pairs::new(recorded(records).of(0)).collect()
    }

    fn switch(time: u64, out: bool, tid: i32, other: i32) -> Switch {
        Switch { time, out, pid: tid, tid, other: Some((other, other)) }
    }

    fn task(tid: i32) -> Task {
        Task { pid: tid, tid }
    }

    #[test]
    fn halves_make_a_switch() {
        let p = pairs(&[switch(10, true, 1, 2), switch(12, false, 2, 1), switch(20, true, 2, 3)]);
        let first = Pair { out: 10, into: 12, before: task(1), after: task(2) };
        assert_eq!(p, [first, Pair { out: 20, into: 20, before: task(2), after: task(3) }]);
    }

    #[test]
    fn a_lost_half_is_made_up_by_the_other() {
        let p = pairs(&[
            switch(10, true, 1, 2),
            switch(20, true, 2, 3),
            switch(22, false, 3, 2),
            switch(30, false, 4, 3),
        ]);
        assert_eq!(
            p.iter().map(|p| (p.out, p.into, p.after.tid)).collect::<Vec<_>>(),
            [(10, 10, 2), (20, 22, 3), (30, 30, 4)]
        );
    }

    #[test]
    fn halves_of_different_switches_are_two() {
        let p = pairs(&[switch(10, true, 1, 2), switch(50, false, 3, 2)]);
        let first = Pair { out: 10, into: 10, before: task(1), after: task(2) };
        assert_eq!(p, [first, Pair { out: 50, into: 50, before: task(2), after: task(3) }]);
    }

    #[test]
    fn plain_switches_tell_who_is_current_only() {
        let half = |time, out, tid| Switch { other: None, ..switch(time, out, tid, 0) };
        let p = pairs(&[half(10, true, 1), half(12, false, 2)]);
        assert_eq!(p, [Pair { out: 10, into: 12, before: task(1), after: task(2) }]);
    }

    #[test]
    fn switches_are_the_same_wherever_reading_begins() {
        let mut state = 7_u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        for _ in 0..500 {
            let mut time = 0;
            let records: Vec<Switch> = (0..12)
                .map(|_| {
                    time += u64::from(random(3));
                    let tid = random(4) as i32;
                    let other = (random(3) > 0).then(|| (random(4) as i32, random(4) as i32));
                    Switch { time, out: random(2) > 0, pid: tid, tid, other }
                })
                .collect();
            let (recorded, all) = (recorded(&records), pairs(&records));
            for time in 0..time + 2 {
                let at = all.partition_point(|p| p.into <= time);
                let c = Cursor::new(recorded.of(0), time, task(9), 30);
                assert_eq!(
                    (c.next, c.second),
                    (all.get(at).copied(), all.get(at + 1).copied()),
                    "{records:?}"
                );
                let first = all.first().map_or(task(9), |p| p.before);
                let before = at.checked_sub(1).map_or(first, |at| all[at].after);
                assert_eq!(
                    (c.task, c.unsure),
                    (before, c.next.is_some_and(|p| p.out <= time)),
                    "{records:?}"
                );
            }
        }
    }

    #[test]
    fn threads_change_in_switch_to_or_by_time() {
        let p = recorded(&[
            switch(100, true, 1, 2),
            switch(120, false, 2, 1),
            switch(900, true, 2, 3),
            switch(920, false, 3, 2),
        ]);
        let mut c = Cursor::new(p.of(0), 50, UNKNOWN, 30);
        assert_eq!(c.task, task(1));
        assert!(!c.switch_to(60), "no switch is due yet");
        assert!(c.switch_to(95), "packets' times may lag");
        assert_eq!(c.task, task(2));
        assert!(!c.pass(900) && !c.pass(949));
        assert!(c.pass(950));
        assert_eq!(c.task, task(3));
    }

    #[test]
    fn behind_the_last_switch_no_time_is_too_late() {
        let p = recorded(&[switch(100, true, 1, 2), switch(120, false, 2, 1)]);
        let mut c = Cursor::new(p.of(0), 50, UNKNOWN, 30);
        assert!(c.pass(u64::MAX) && !c.pass(u64::MAX));
        assert_eq!(c.task, task(2));
    }

    #[test]
    fn user_code_is_of_the_next_thread_already() {
        let p = recorded(&[switch(100, true, 1, 2), switch(120, false, 2, 1)]);
        let mut c = Cursor::new(p.of(0), 110, UNKNOWN, 30);
        assert!(c.unsure);
        assert_eq!(c.task, task(1));
        assert!(c.user(110));
        assert_eq!((c.task, c.unsure), (task(2), false));
    }
}
