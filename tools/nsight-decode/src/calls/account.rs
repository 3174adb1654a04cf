// SPDX-License-Identifier: GPL-2.0-only
//! What was built, the granularity of its times, and what is missing.

use serde_json::{json, Value};

use crate::losses::Ledger;

/// Steps up to this length are counted exactly, ns.
const FINE: usize = 1 << 12;

/// The time steps between consecutive edges that have different times. Calls within one such step share a time: only
/// their order is known.
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
    /// An edge `step` ns after the previous one, in code that ran without a stop.
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

    /// The quantile of all steps, ns: the fraction `part` of them is not longer.
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
    pub granularity: Granularity,
    /// Losses that the events report; the decoder knows of more.
    pub losses: Ledger,
}

impl Account {
    pub fn json(&self, rows: u64) -> Value {
        json!({
            "version": 1,
            "clock": "perf",
            "rows": rows,
            "granularity_ns": self.granularity.json(),
            "losses": self.losses.json(),
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
}
