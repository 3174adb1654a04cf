// SPDX-License-Identifier: GPL-2.0-only
//! Compares two lists of branches: from the log, and from a decoder of the packets.

use serde::{Deserialize, Serialize};

/// An interval in which branches are missing on purpose; it comes from aux.json.
#[derive(Clone, Debug, Deserialize)]
pub struct Injected {
    pub kind: String,
    pub cpu: usize,
    pub tsc_start: u64,
    pub tsc_end: u64,
}

/// A branch that a decoder should find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub tsc: u64,
    pub from: u64,
    pub to: u64,
    /// Only the code shows it: a decoder sees it only on its way to the next packet.
    pub silent: bool,
}

#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    pub compared: u64,
    /// Missing within injected intervals.
    pub missing: u64,
    /// The first place where the lists differ; nothing after it was compared.
    pub difference: Option<String>,
}

impl Comparison {
    pub fn is_equal(&self) -> bool {
        self.difference.is_none() && self.compared > 0
    }
}

/// Compares branches one by one as they arrive.
pub struct Comparer<'a> {
    expected: &'a [Expected],
    injected: Vec<&'a Injected>,
    at: usize,
    /// How many branches with packets before a loss a decoder may fail to report.
    edge: usize,
    pub result: Comparison,
}

impl<'a> Comparer<'a> {
    pub fn new(cpu: usize, expected: &'a [Expected], injected: &'a [Injected]) -> Self {
        let injected = injected.iter().filter(|i| i.cpu == cpu).collect();
        Self { expected, injected, at: 0, edge: 0, result: Comparison::default() }
    }

    pub fn with_edge(self, edge: usize) -> Self {
        Self { edge, ..self }
    }

    /// The end of the injected loss that can explain why `at` is missing.
    fn end_of_loss(&self) -> Option<usize> {
        let missing = self.expected.get(self.at)?;
        for loss in &self.injected {
            if missing.tsc > loss.tsc_end {
                continue;
            }
            let rest = &self.expected[self.at..];
            // A decoder sees branches without packets only when it reads the packet after them.
            let before = rest.iter().take_while(|e| e.tsc < loss.tsc_start);
            if before.filter(|e| !e.silent).count() > self.edge {
                return None;
            }
            return Some(self.at + rest.iter().take_while(|e| e.tsc <= loss.tsc_end).count());
        }
        None
    }

    /// Takes the decoder's next branch. Returns the equal branch of the log.
    pub fn next(&mut self, from: u64, to: u64) -> Option<Expected> {
        if self.result.difference.is_some() {
            return None;
        }
        let equals = |e: &&Expected| (e.from, e.to) == (from, to);
        if self.expected.get(self.at).filter(equals).is_none() {
            match self.end_of_loss() {
                Some(end) if self.expected.get(end).filter(equals).is_some() => {
                    self.result.missing += (end - self.at) as u64;
                    self.at = end;
                }
                _ => {
                    let log = self.expected.get(self.at);
                    let log = log.map_or("nothing".to_owned(), |e| format!("{:#x} to {:#x}", e.from, e.to));
                    let compared = self.result.compared;
                    let text = format!("branch {compared}: {from:#x} to {to:#x}, in the log {log}");
                    self.result.difference = Some(text);
                    return None;
                }
            }
        }
        self.at += 1;
        self.result.compared += 1;
        Some(self.expected[self.at - 1])
    }

    /// The decoder has no more branches.
    pub fn finish(mut self) -> Comparison {
        if self.result.difference.is_none() && self.at < self.expected.len() {
            if self.end_of_loss() == Some(self.expected.len()) {
                self.result.missing += (self.expected.len() - self.at) as u64;
            } else if !self.expected[self.at..].iter().all(|e| e.silent) {
                let left = self.expected.len() - self.at;
                let next = self.expected[self.at];
                self.result.difference =
                    Some(format!("{left} branches of the log are missing, from {:#x} on", next.from));
            }
        }
        self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(tscs: &[u64]) -> Vec<Expected> {
        let silent = |tsc: u64| tsc % 10 == 1; // times ending in 1 are direct jumps
        tscs.iter().map(|&tsc| Expected { tsc, from: tsc, to: tsc + 1000, silent: silent(tsc) }).collect()
    }

    fn compare(expected: &[Expected], decoded: &[u64], injected: &[Injected]) -> Comparison {
        let mut comparer = Comparer::new(0, expected, injected);
        for &from in decoded {
            comparer.next(from, from + 1000);
        }
        comparer.finish()
    }

    fn loss(cpu: usize, tsc_start: u64, tsc_end: u64) -> Vec<Injected> {
        vec![Injected { kind: "overflow".into(), cpu, tsc_start, tsc_end }]
    }

    #[test]
    fn equal_lists_are_equal_and_empty_ones_prove_nothing() {
        assert!(compare(&log(&[5, 10, 15]), &[5, 10, 15], &[]).is_equal());
        assert!(!compare(&[], &[], &[]).is_equal());
    }

    #[test]
    fn one_branch_more_less_or_other_is_a_difference() {
        let expected = log(&[5, 10, 15]);
        for decoded in [&[5, 10][..], &[5, 15], &[5, 10, 15, 20], &[5, 12, 15], &[]] {
            assert!(!compare(&expected, decoded, &[]).is_equal(), "{decoded:?}");
        }
    }

    #[test]
    fn only_what_an_injected_loss_covers_may_be_missing() {
        let expected = log(&[5, 10, 15, 20, 25]);
        let result = compare(&expected, &[5, 20, 25], &loss(0, 8, 15));
        assert!(result.is_equal() && result.missing == 2, "{result:?}");
        assert!(!compare(&expected, &[5, 25], &loss(0, 8, 15)).is_equal()); // 20 is after it
        assert!(!compare(&expected, &[20, 25], &loss(0, 8, 15)).is_equal()); // 5 is before it
        assert!(!compare(&expected, &[5, 20, 25], &loss(1, 8, 15)).is_equal()); // of another CPU
    }

    #[test]
    fn direct_jumps_before_a_loss_are_lost_with_it() {
        let expected = log(&[5, 11, 15, 20]);
        assert!(compare(&expected, &[5, 20], &loss(0, 13, 15)).is_equal());
        assert!(compare(&log(&[5, 11]), &[5], &[]).is_equal()); // the last jump leads to no packet
    }

    #[test]
    fn a_loss_at_the_end_is_a_loss() {
        let result = compare(&log(&[5, 10, 15]), &[5], &loss(0, 8, 15));
        assert!(result.is_equal() && result.missing == 2);
    }
}
