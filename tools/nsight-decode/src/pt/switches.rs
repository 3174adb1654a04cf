// SPDX-License-Identifier: GPL-2.0-only
//! Which thread runs on a CPU, from its context switches.
//!
//! The kernel reports a switch shortly before (out) and shortly after (in) it happens. If PT shows __switch_to() in
//! between, the threads change there, as in perf; otherwise, they change by time.

use crate::perfdata::Switch;

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

/// Pairs the switch records of a CPU.
pub fn pairs(records: &[Switch]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut open: Option<(u64, Task, Option<Task>)> = None;
    let task = |(pid, tid)| Task { pid, tid };
    for record in records {
        let own = Task { pid: record.pid, tid: record.tid };
        if record.out {
            if let Some((out, before, Some(after))) = open.take() {
                // Its other half was lost.
                pairs.push(Pair { out, into: out, before, after });
            }
            open = Some((record.time, own, record.other.map(task)));
        } else {
            let (out, before) = match open.take() {
                // Halves of two switches: the second half of the first and the first half of the second were lost.
                Some((out, before, Some(after))) if after.tid != own.tid => {
                    pairs.push(Pair { out, into: out, before, after });
                    (record.time, record.other.map_or(after, task))
                }
                Some((out, before, _)) => (out, before),
                None => {
                    let known = pairs.last().map(|p| p.after);
                    (record.time, record.other.map(task).or(known).unwrap_or(UNKNOWN))
                }
            };
            pairs.push(Pair { out, into: record.time, before, after: own });
        }
    }
    if let Some((out, before, Some(after))) = open {
        pairs.push(Pair { out, into: out, before, after });
    }
    pairs
}

/// Follows the context switches of a CPU through its trace.
pub struct Cursor<'a> {
    pairs: &'a [Pair],
    next: usize,
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
    pub fn new(pairs: &'a [Pair], time: u64, start: Task, slack: u64) -> Self {
        let next = pairs.partition_point(|p| p.into <= time);
        let task = match (next.checked_sub(1), pairs.first()) {
            (Some(last), _) => pairs[last].after,
            (None, Some(first)) => first.before,
            (None, None) => start,
        };
        let unsure = pairs.get(next).is_some_and(|p| p.out <= time);
        let mut cursor = Self { pairs, next, task, slack, deadline: 0, unsure };
        cursor.set_deadline();
        cursor
    }

    fn set_deadline(&mut self) {
        self.deadline = self.pairs.get(self.next).map_or(u64::MAX, |p| p.into.saturating_add(self.slack));
    }

    fn apply(&mut self) {
        self.task = self.pairs[self.next].after;
        self.next += 1;
        self.unsure = false;
        self.set_deadline();
    }

    /// The CPU is in __switch_to(). Returns true if another thread runs now.
    pub fn switch_to(&mut self, time: u64) -> bool {
        // If the following switch has begun, this one is over.
        while self.pairs.get(self.next + 1).is_some_and(|p| p.out <= time) {
            self.apply();
        }
        let due = self.pairs.get(self.next).is_some_and(|p| p.out <= time.saturating_add(self.slack));
        if due {
            self.apply();
        }
        due
    }

    /// Time advances to `time`. Returns true if a switch that was not seen is over.
    pub fn pass(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.next < self.pairs.len() && time >= self.deadline {
            self.apply();
            passed = true;
        }
        passed
    }

    /// Decoding resumes: all switches up to `time` are over.
    pub fn resume(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.pairs.get(self.next).is_some_and(|p| p.into <= time) {
            self.apply();
            passed = true;
        }
        passed
    }

    /// Whether `time` lies between the halves of a switch.
    pub fn is_amid(&self, time: u64) -> bool {
        self.pairs.get(self.next).is_some_and(|p| p.out <= time && time < p.into)
    }

    /// User code runs, so no switch is in progress.
    pub fn user(&mut self, time: u64) -> bool {
        let mut passed = false;
        while self.pairs.get(self.next).is_some_and(|p| p.out <= time) {
            self.apply();
            passed = true;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn threads_change_in_switch_to_or_by_time() {
        let p = pairs(&[
            switch(100, true, 1, 2),
            switch(120, false, 2, 1),
            switch(900, true, 2, 3),
            switch(920, false, 3, 2),
        ]);
        let mut c = Cursor::new(&p, 50, UNKNOWN, 30);
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
        let p = pairs(&[switch(100, true, 1, 2), switch(120, false, 2, 1)]);
        let mut c = Cursor::new(&p, 50, UNKNOWN, 30);
        assert!(c.pass(u64::MAX) && !c.pass(u64::MAX));
        assert_eq!(c.task, task(2));
    }

    #[test]
    fn user_code_is_of_the_next_thread_already() {
        let p = pairs(&[switch(100, true, 1, 2), switch(120, false, 2, 1)]);
        let mut c = Cursor::new(&p, 110, UNKNOWN, 30);
        assert!(c.unsure);
        assert_eq!(c.task, task(1));
        assert!(c.user(110));
        assert_eq!((c.task, c.unsure), (task(2), false));
    }
}
