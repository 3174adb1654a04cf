// SPDX-License-Identifier: GPL-2.0-only
//! Stretches of time that are to be decoded.

use std::path::Path;

use crate::error::{Error, Result};

/// Stretches in ns, in order, without overlap. None: all of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Option<Vec<(u64, u64)>>);

const FORM: &str =
    "A-B: seconds with decimals, as perf script shows them, or whole ns; @FILE with one window a line";

impl Windows {
    /// Of the values of --time.
    pub fn parse(given: &[String]) -> Result<Self> {
        if given.is_empty() {
            return Ok(Self(None));
        }
        let mut windows = Vec::new();
        for text in given {
            match text.strip_prefix('@') {
                Some(name) => {
                    let path = Path::new(name);
                    let lines = std::fs::read_to_string(path).map_err(|e| Error::input(path, e, FORM))?;
                    for line in lines.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
                        windows.push(window(line)?);
                    }
                }
                None => windows.push(window(text)?),
            }
        }
        windows.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in windows {
            match joined.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((begin, end)),
            }
        }
        Ok(Self(Some(joined)))
    }

    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether any of a stretch is wanted; both ends belong to it.
    pub fn touch(&self, begin: u64, end: u64) -> bool {
        let Some(windows) = &self.0 else { return true };
        let at = windows.partition_point(|w| w.1 < begin);
        windows.get(at).is_some_and(|w| w.0 <= end)
    }

    pub fn contain(&self, time: u64) -> bool {
        self.touch(time, time)
    }
}

fn window(text: &str) -> Result<(u64, u64)> {
    let bad = || Error::usage(format_args!("--time {text}: no window of time"), FORM);
    let (begin, end) = text.trim().split_once(['-', ' ', '\t', ',']).ok_or_else(bad)?;
    let (begin, end) = (ns(begin.trim()).ok_or_else(bad)?, ns(end.trim()).ok_or_else(bad)?);
    if begin > end {
        return Err(Error::usage(format_args!("--time {text}: ends before it begins"), FORM));
    }
    Ok((begin, end))
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
        assert_eq!(w, Windows(Some(vec![(5, 20), (40_780_000_000, 40_790_000_000)])));
        assert!(w.contain(20) && w.contain(40_785_000_000) && !w.contain(21));
        assert!(w.touch(0, 5) && w.touch(15, 99) && !w.touch(21, 99));
    }

    #[test]
    fn without_any_all_is_wanted() {
        assert!(parse(&[]).unwrap().touch(1, 2));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in ["", "5", "9-5", "a-b", "1.-2", "1.1234567890-2", "99999999999999999999-5", "1.5-"] {
            assert!(parse(&[text]).is_err(), "{text}");
        }
        assert!(parse(&["@/nonexistent"]).is_err());
    }
}
