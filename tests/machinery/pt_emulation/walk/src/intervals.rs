// SPDX-License-Identifier: GPL-2.0-only
//! When selected functions ran: their executions, without the time of other tasks.

use pt_events::{Event, Kind};

/// An interval of a function's execution in which the task that called it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub function: u64,
    /// `task_struct` of the task that called it; 0 before the first context switch.
    pub task: u64,
    pub start: u64,
    pub end: u64,
}

struct Open {
    function: u64,
    task: u64,
    returns_to: u64,
    since: u64,
}

impl Open {
    fn until(&self, end: u64) -> Interval {
        Interval { function: self.function, task: self.task, start: self.since, end }
    }
}

/// Intervals of executions that ended on one CPU. `switch` is the address of __switch_to_asm, which is watched: its
/// first arguments are the previous and the next task.
pub fn intervals(events: &[Event], switch: u64, functions: &[u64]) -> Vec<Interval> {
    let mut task = 0;
    let mut open: Vec<Open> = Vec::new();
    let mut done = Vec::new();
    for &Event { tsc, kind } in events {
        match kind {
            Kind::Watch { ip, rdi, rsi, .. } if ip == switch => {
                if task == 0 {
                    open.iter_mut().for_each(|o| o.task = rdi);
                    task = rdi;
                }
                done.extend(open.iter().filter(|o| o.task == task).map(|o| o.until(tsc)));
                task = rsi;
                open.iter_mut().filter(|o| o.task == task).for_each(|o| o.since = tsc);
            }
            Kind::Call { to, next, .. } | Kind::IndirectCall { to, next, .. } if functions.contains(&to) => {
                open.push(Open { function: to, task, returns_to: next, since: tsc });
            }
            Kind::Ret { to, .. } => {
                let mine = |o: &Open| o.task == task && o.returns_to == to;
                if let Some(at) = open.iter().rposition(mine) {
                    done.push(open.remove(at).until(tsc));
                }
            }
            _ => {}
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: u64 = 0x100;
    const F: u64 = 0x200;

    fn at(tsc: u64, kind: Kind) -> Event {
        Event { tsc, kind }
    }

    fn switch(tsc: u64, from: u64, to: u64) -> Event {
        at(tsc, Kind::Watch { ip: SWITCH, rdi: from, rsi: to, rdx: 0 })
    }

    #[test]
    fn time_of_other_tasks_is_not_the_functions_own() {
        let events = [
            at(10, Kind::Call { from: 1, to: F, next: 6 }),
            switch(30, 0xa, 0xb),
            at(40, Kind::Ret { from: 2, to: 6 }), // the other task returns to the same address
            switch(50, 0xb, 0xa),
            at(55, Kind::Ret { from: 2, to: 6 }),
        ];
        let interval = |start, end| Interval { function: F, task: 0xa, start, end };
        assert_eq!(intervals(&events, SWITCH, &[F]), [interval(10, 30), interval(50, 55)]);
    }

    #[test]
    fn calls_nest_and_other_functions_do_not_count() {
        let events = [
            at(1, Kind::Call { from: 1, to: F, next: 6 }),
            at(2, Kind::IndirectCall { from: 3, to: F, next: 7 }),
            at(3, Kind::Call { from: 1, to: 0x300, next: 8 }),
            at(4, Kind::Ret { from: 2, to: 8 }),
            at(5, Kind::Ret { from: 2, to: 7 }),
            at(9, Kind::Ret { from: 2, to: 6 }),
        ];
        let found = intervals(&events, SWITCH, &[F]);
        assert_eq!(found.iter().map(|i| (i.start, i.end)).collect::<Vec<_>>(), [(2, 5), (1, 9)]);
    }
}
