// SPDX-License-Identifier: GPL-2.0-only
//! How much was lost.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use super::registry::{Loss, Words};
use crate::edges::{Code, Event, COMPRESSED_RETURN};

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    counts: BTreeMap<Loss, u64>,
    /// Losses that are reported one by one, each for one object.
    objects: Vec<Lost>,
}

/// A row of a ledger.
#[derive(Clone, Debug)]
pub struct Lost {
    pub loss: Loss,
    pub count: u64,
    /// Replacements for the words in braces.
    words: BTreeMap<&'static str, String>,
}

/// The loss that an event of the edge stream reports.
fn loss_of(event: &Event) -> Option<Loss> {
    Some(match event.code {
        Code::DecodeError => of_error(event.value),
        Code::Overflow => Loss::Overflow,
        Code::AuxTruncated => Loss::BufferFull,
        Code::LostRecords => Loss::RecordsLost,
        Code::AuxPartial => Loss::TracePartial,
        Code::Guest => Loss::GuestCode,
        Code::Skipped => Loss::OutsideWindows,
        _ => return None,
    })
}

/// The loss for an error code of perf.
fn of_error(code: u64) -> Loss {
    match code {
        3 => Loss::PacketsDamaged,
        5 => Loss::CodeMissing,
        6 => Loss::CodeContradicted,
        8 => Loss::TraceMissing,
        COMPRESSED_RETURN => Loss::ReturnUnknown,
        9 => Loss::DecoderStopped,
        10 => Loss::EndlessLoop,
        _ => Loss::DecodingFailed,
    }
}

impl Ledger {
    /// Adds a count: 0 adds no row, and counts of the same loss are summed.
    pub fn add(&mut self, loss: Loss, count: u64) {
        if count > 0 {
            let known = self.counts.entry(loss).or_default();
            *known = known.saturating_add(count);
        }
    }

    /// Adds a loss of a named object, with the reason.
    pub fn add_object(&mut self, loss: Loss, count: u64, object: String, why: String) {
        let words = BTreeMap::from([("object", object), ("why", why)]);
        self.objects.push(Lost { loss, count, words });
    }

    pub fn event(&mut self, event: &Event) {
        let count = if event.code == Code::LostRecords { event.value } else { 1 };
        if let Some(loss) = loss_of(event) {
            self.add(loss, count);
        }
    }

    /// The rows, in the order of the registry.
    pub fn rows(&self) -> Vec<Lost> {
        let plain = |(&loss, &count): (&Loss, &u64)| Lost { loss, count, words: BTreeMap::new() };
        let mut rows: Vec<Lost> = self.counts.iter().map(plain).chain(self.objects.iter().cloned()).collect();
        rows.sort_by_key(|row| row.loss);
        rows
    }

    pub fn json(&self) -> Value {
        self.rows().iter().map(Lost::json).collect()
    }
}

impl Lost {
    /// The text with the words in braces replaced.
    pub fn text(&self, text: &str) -> String {
        // Replacing one word after the other would also replace words within the first replacement.
        let found = self.words.iter().find(|(word, _)| text.contains(&format!("{{{word}}}")));
        found.map_or(text.into(), |(word, told)| text.replace(&format!("{{{word}}}"), told))
    }

    fn json(&self) -> Value {
        let Words { key, severity, cause, detail, remedy } = self.loss.words();
        json!({
            "key": key,
            "severity": severity.name(),
            "count": self.count,
            "words": self.words,
            "cause": self.text(cause),
            "detail": self.text(detail),
            "remedy": remedy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(code: Code, value: u64) -> Event {
        Event { time: 1, cpu: 0, pid: 0, tid: 0, code, value }
    }

    fn told(ledger: &Ledger) -> Vec<(&'static str, u64)> {
        ledger.rows().iter().map(|row| (row.loss.words().key, row.count)).collect()
    }

    #[test]
    fn losses_of_events_add_up_and_others_are_none() {
        let mut ledger = Ledger::default();
        for (code, value) in [
            (Code::Overflow, 0),
            (Code::LostRecords, 7),
            (Code::SwitchIn, 0),
            (Code::DecodeError, 5),
            (Code::DecodeError, 5),
            (Code::DecodeError, u64::MAX),
        ] {
            ledger.event(&event(code, value));
        }
        let expected = [("code_missing", 2), ("failed", 1), ("overflow", 1), ("records_lost", 7)];
        assert_eq!(told(&ledger), expected);
    }

    #[test]
    fn as_many_lost_records_as_a_file_may_tell_are_counted() {
        let mut ledger = Ledger::default();
        (0..2).for_each(|_| ledger.event(&event(Code::LostRecords, u64::MAX)));
        assert_eq!(told(&ledger), [("records_lost", u64::MAX)]);
    }

    #[test]
    fn names_of_a_recording_are_not_read_as_words_to_replace() {
        let mut ledger = Ledger::default();
        ledger.add_object(Loss::ObjectMissing, 3, "/{why}".into(), "{object}".into());
        ledger.add(Loss::FileCut, 0);
        let rows = ledger.json();
        assert_eq!(
            (rows[0]["cause"].as_str(), rows[0]["detail"].as_str()),
            (Some("code missing: /{why}"), Some("{object}"))
        );
        assert_eq!(rows[0]["words"]["object"], "/{why}");
        assert_eq!(rows.as_array().map(Vec::len), Some(1));
    }
}
