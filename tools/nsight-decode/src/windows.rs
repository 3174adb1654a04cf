// SPDX-License-Identifier: GPL-2.0-only
//! The intervals of time that are decoded.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};

/// Begin and end in ns, in order, without overlap.
type Intervals = Vec<(u64, u64)>;

/// Intervals by CPU; key `None`: for every CPU. Without any map, the whole recording is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Option<BTreeMap<Option<i32>, Intervals>>);

const FORM: &str = "A-B or A-B:CPU: seconds with decimals, as perf script shows them, or whole ns; \
@FILE with one window a line";

impl Windows {
    /// From the values of --time.
    pub fn parse(given: &[String]) -> Result<Self> {
        if given.is_empty() {
            return Ok(Self(None));
        }
        let mut windows: BTreeMap<Option<i32>, Intervals> = BTreeMap::new();
        let mut add = |text: &str| -> Result<()> {
            let (cpu, begin, end) = window(text)?;
            windows.entry(cpu).or_default().push((begin, end));
            Ok(())
        };
        for text in given {
            match text.strip_prefix('@') {
                Some(name) => {
                    let path = Path::new(name);
                    let lines = std::fs::read_to_string(path).map_err(|e| Error::input(path, e, FORM))?;
                    for line in lines.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
                        add(line)?;
                    }
                }
                None => add(text)?,
            }
        }
        for intervals in windows.values_mut() {
            *intervals = joined(std::mem::take(intervals));
        }
        Ok(Self(Some(windows)))
    }

    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether any part of an interval of a CPU is selected; both ends belong to the interval. If the CPU is not known,
    /// it may have been any CPU.
    pub fn touch(&self, cpu: Option<i32>, begin: u64, end: u64) -> bool {
        let Some(windows) = &self.0 else { return true };
        let of = |intervals: &Intervals| {
            let at = intervals.partition_point(|w| w.1 < begin);
            intervals.get(at).is_some_and(|w| w.0 <= end)
        };
        match cpu {
            Some(_) => [None, cpu].iter().filter_map(|of| windows.get(of)).any(of),
            None => windows.values().any(of),
        }
    }

    pub fn contain(&self, cpu: Option<i32>, time: u64) -> bool {
        self.touch(cpu, time, time)
    }
}

fn joined(mut intervals: Intervals) -> Intervals {
    intervals.sort_unstable();
    let mut joined: Intervals = Vec::new();
    for (begin, end) in intervals {
        match joined.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    joined
}

fn window(text: &str) -> Result<(Option<i32>, u64, u64)> {
    let bad = || Error::usage(format_args!("--time {text}: no window of time"), FORM);
    let (times, cpu) = match text.trim().split_once(':') {
        Some((times, cpu)) => (times, Some(cpu.parse().ok().filter(|c| *c >= 0).ok_or_else(bad)?)),
        None => (text.trim(), None),
    };
    let (begin, end) = times.split_once(['-', ' ', '\t', ',']).ok_or_else(bad)?;
    let (begin, end) = (ns(begin.trim()).ok_or_else(bad)?, ns(end.trim()).ok_or_else(bad)?);
    if begin > end {
        return Err(Error::usage(format_args!("--time {text}: ends before it begins"), FORM));
    }
    Ok((cpu, begin, end))
}

fn ns(text: &str) -> Option<u64> {
    let Some((seconds, decimals)) = text.split_once('.') else { return text.parse().ok() };
    if decimals.is_empty() || decimals.len() > 9 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction: u64 = decimals.parse().ok()?;
    let ns = fraction * 10u64.pow(9 - decimals.len() as u32);
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> Result<Windows> {
        Windows::parse(&given.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn seconds_and_ns_are_windows() {
        let w = parse(&["40.78-40.79", "5-9", "8-20"]).unwrap();
        let joined = vec![(5, 20), (40_780_000_000, 40_790_000_000)];
        assert_eq!(w, Windows(Some(BTreeMap::from([(None, joined)]))));
        assert!(w.contain(Some(0), 20) && w.contain(None, 40_785_000_000) && !w.contain(Some(0), 21));
        assert!(w.touch(Some(7), 0, 5) && w.touch(Some(7), 15, 99) && !w.touch(Some(7), 21, 99));
    }

    #[test]
    fn a_window_of_a_cpu_is_of_no_other() {
        let w = parse(&["5-9:0", "7-20:1", "30-40"]).unwrap();
        assert!(w.contain(Some(0), 9) && !w.contain(Some(0), 10) && w.contain(Some(1), 10));
        assert!(!w.contain(Some(2), 8) && w.contain(Some(2), 30));
        // A thread's buffer, when it is unknown where the thread ran.
        assert!(w.contain(None, 8) && w.contain(None, 20) && !w.contain(None, 21));
    }

    #[test]
    fn without_any_all_is_wanted() {
        assert!(parse(&[]).unwrap().touch(Some(0), 1, 2));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in [
            "",
            "5",
            "1-2:",
            "1-2:x",
            "1-2:-1",
            "9-5",
            "a-b",
            "1.-2",
            "1.1234567890-2",
            "99999999999999999999-5",
            "1.5-",
        ] {
            assert!(parse(&[text]).is_err(), "{text}");
        }
        assert!(parse(&["@/nonexistent"]).is_err());
    }
}
