// SPDX-License-Identifier: GPL-2.0-only
//! What was built, how finely timed, and what is missing.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use crate::edges::{Code, Event};

/// What an event of the edge stream says of what is missing, and what helps.
pub struct Loss {
    pub code: Code,
    pub cause: &'static str,
    pub severity: &'static str,
    pub detail: &'static str,
    pub remedy: &'static str,
}

pub const LOSSES: [Loss; 7] = [
    Loss {
        code: Code::DecodeError,
        cause: "trace could not be decoded",
        severity: "error",
        detail: "from there to the next synchronisation nothing is known; a gap",
        remedy: "record with --kcore, and give --symfs the recorded machine's programs",
    },
    Loss {
        code: Code::Overflow,
        cause: "processor lost trace packets",
        severity: "error",
        detail: "its internal buffer overflowed; a gap",
        remedy: "trace fewer cores, a filter, or with a longer cyc_thresh",
    },
    Loss {
        code: Code::AuxTruncated,
        cause: "trace buffer was full",
        severity: "error",
        detail: "perf did not empty it in time; a gap",
        remedy: "give perf a larger AUX buffer: perf record -m ,64M",
    },
    Loss {
        code: Code::LostRecords,
        cause: "perf lost records",
        severity: "error",
        detail: "among them may be switches and mappings",
        remedy: "give perf a larger buffer: perf record -m 4M",
    },
    Loss {
        code: Code::AuxPartial,
        cause: "trace is partial",
        severity: "warning",
        detail: "it was overwritten, or another user of Intel PT ran",
        remedy: "record without --snapshot, and alone",
    },
    Loss {
        code: Code::Guest,
        cause: "code of a virtual machine",
        severity: "info",
        detail: "it is not decoded; a gap",
        remedy: "record in the guest, or exclude it: intel_pt//H",
    },
    Loss {
        code: Code::Skipped,
        cause: "stretch outside of the time windows",
        severity: "info",
        detail: "it was not decoded, as asked",
        remedy: "",
    },
];

/// Steps up to this are counted exactly, ns.
const FINE: usize = 1 << 12;

/// How far apart the times of consecutive edges are that differ: calls within one such step share
/// a time, and their order is all that is known.
#[derive(Clone, Debug)]
pub struct Granularity {
    steps: Vec<u64>,
    longer: u64,
    edges: u64,
    times: u64,
}

impl Default for Granularity {
    fn default() -> Self {
        Self { steps: vec![0; FINE], longer: 0, edges: 0, times: 0 }
    }
}

impl Granularity {
    /// An edge `step` ns after the one before it, in code that ran without a stop.
    pub fn step(&mut self, step: u64) {
        self.edges += 1;
        if step > 0 {
            self.times += 1;
            match self.steps.get_mut(step as usize) {
                Some(n) => *n += 1,
                None => self.longer += 1,
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.steps.iter_mut().zip(&other.steps).for_each(|(a, b)| *a += b);
        self.longer += other.longer;
        self.edges += other.edges;
        self.times += other.times;
    }

    /// The step that a part of all steps does not exceed, ns.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = (self.times as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.steps
            .iter()
            .position(|&n| {
                seen += n;
                seen >= wanted
            })
            .map(|step| step as u64)
    }

    fn json(&self) -> Value {
        json!({
            "median": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "edges_per_time": self.edges as f64 / self.times.max(1) as f64,
        })
    }
}

#[derive(Clone, Debug, Default)]
pub struct Account {
    pub rows: u64,
    /// Times at which open calls were cut, since too many rows waited for their end.
    pub cuts: u64,
    pub granularity: Granularity,
    pub events: BTreeMap<Code, u64>,
    /// Further losses, of whoever decoded: cause, severity, count, detail, remedy.
    pub more: Vec<Value>,
}

impl Account {
    pub fn event(&mut self, event: &Event) {
        let by = if event.code == Code::LostRecords { event.value } else { 1 };
        let events = self.events.entry(event.code).or_default();
        *events = events.saturating_add(by);
    }

    fn losses(&self) -> Vec<Value> {
        let mut losses: Vec<Value> = LOSSES
            .iter()
            .filter_map(|&Loss { code, cause, severity, detail, remedy }| {
                let count = *self.events.get(&code)?;
                Some(json!({"cause": cause, "severity": severity, "count": count, "detail": detail, "remedy": remedy}))
            })
            .collect();
        if self.cuts > 0 {
            losses.push(json!({
                "cause": "open calls cut to save memory", "severity": "info", "count": self.cuts,
                "detail": "a core ran one thread for very long; ends marked inferred", "remedy": "",
            }));
        }
        losses.extend(self.more.iter().cloned());
        losses
    }

    pub fn json(&self, rows: u64) -> Value {
        json!({
            "version": 1,
            "clock": "perf",
            "rows": rows,
            "granularity_ns": self.granularity.json(),
            "losses": self.losses(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granularity_is_that_of_times_that_differ() {
        let mut g = Granularity::default();
        // 10 edges at 4 times: steps of 2, 2, 2 and 100 ns
        for step in [2, 0, 0, 2, 0, 0, 0, 2, 0, 100] {
            g.step(step);
        }
        assert_eq!((g.quantile(0.5), g.quantile(0.99)), (Some(2), Some(100)));
        assert_eq!(g.json()["edges_per_time"], 2.5);
    }

    #[test]
    fn as_many_lost_records_as_a_file_may_tell_are_counted() {
        let mut account = Account::default();
        let lost = Event { time: 1, cpu: 0, pid: 0, tid: 0, code: Code::LostRecords, value: u64::MAX };
        (0..2).for_each(|_| account.event(&lost));
        assert_eq!(account.json(0)["losses"][0]["count"], u64::MAX);
    }

    #[test]
    fn every_loss_is_in_the_account() {
        let mut account = Account::default();
        let event = |code, value| Event { time: 1, cpu: 0, pid: 0, tid: 0, code, value };
        account.event(&event(Code::Overflow, 0));
        account.event(&event(Code::LostRecords, 7));
        account.event(&event(Code::SwitchIn, 0)); // no loss
        let losses = account.json(0)["losses"].as_array().unwrap().clone();
        let counts: Vec<_> = losses.iter().map(|l| l["count"].as_u64().unwrap()).collect();
        assert_eq!(counts, [1, 7]);
    }
}
