// SPDX-License-Identifier: GPL-2.0-only
//! What was lost, how much of it, and what helps.

use nsight_decode::calls::LOSSES;
use nsight_decode::edges::Code;
use nsight_decode::pipeline::Counts;
use serde_json::{json, Value};

use crate::cli::Opened;

struct Loss {
    what: String,
    severity: &'static str,
    count: u64,
    detail: String,
    remedy: &'static str,
    /// The edges' events do not tell it: the tables' account does not have it of itself.
    of_decoder: bool,
}

/// Objects that are told one by one.
const MOST_OBJECTS: usize = 10;

pub struct Losses(Vec<Loss>);

/// perf's words for its error codes, and what to do.
const ERRORS: [(u64, &str, &str); 6] = [
    (3, "packets are damaged", "a hardware erratum, or the file is damaged"),
    (
        5,
        "code is missing",
        "record with --kcore; give --symfs the recorded machine's programs; code that was made at run time cannot be decoded",
    ),
    (
        6,
        "trace and code contradict each other",
        "the programs or the kernel are others than the recorded ones: --symfs, --kcore",
    ),
    (8, "trace data are missing between two pieces", "perf record -m ,64M"),
    (9, "libipt could not go on", ""),
    (10, "a loop without end in the code", "the programs or the kernel are others than the recorded ones"),
];

impl Losses {
    pub fn of(opened: &Opened, counts: &Counts) -> Self {
        let mut losses = Self(Vec::new());
        for (&code, &count) in &counts.errors {
            let known = ERRORS.iter().find(|e| e.0 == code);
            let (what, remedy) = known.map_or(("decoding failed", ""), |e| (e.1, e.2));
            losses.add(
                what.into(),
                "error",
                count,
                "nothing is known from there to the next address in the packets",
                remedy,
            );
        }
        // Of decode errors the codes have said more.
        for loss in LOSSES.iter().filter(|l| l.code != Code::DecodeError) {
            let count = counts.events.get(&loss.code).copied().unwrap_or(0);
            losses.add(loss.cause.into(), loss.severity, count, loss.detail, loss.remedy);
        }
        losses.own(opened, counts);
        losses
    }

    /// Of which the edge stream does not tell.
    fn own(&mut self, opened: &Opened, counts: &Counts) {
        let from = self.0.len();
        let recording = &opened.recording;
        if recording.config.kernel && !opened.code.kernel.is_known() {
            let why = "no kernel code: what ran in the kernel is not decoded";
            self.add(
                "kernel image missing".into(),
                "error",
                1,
                why,
                "record with --kcore, or give --kcore /proc on the same boot",
            );
        }
        let pokes = "what the kernel changed in its code after that is not followed";
        self.add(
            "changes of kernel code".into(),
            "error",
            opened.code.kernel.pokes_left_out as u64,
            pokes,
            "",
        );
        let lacking = opened.code.lacking();
        for (name, n, why) in lacking.iter().take(MOST_OBJECTS) {
            let remedy =
                "give --symfs the recorded machine's files; code that was made at run time is in none";
            self.add(format!("code missing: {name}"), "warning", *n, why, remedy);
        }
        let others: u64 = lacking.iter().skip(MOST_OBJECTS).map(|(_, n, _)| n).sum();
        self.add(
            "code missing: others".into(),
            "warning",
            others,
            "in objects that were needed less often",
            "",
        );
        if recording.file.cut {
            let what = "perf.data is cut";
            let why = "perf was killed, or the file was not copied as a whole; decoded as far as it goes, without header features (code of BPF programs)";
            self.add(what.into(), "warning", 1, why, "let perf end by SIGINT");
        }
        let bytes = "behind a damaged record nothing can be read";
        self.add(
            "bytes of records unread".into(),
            "error",
            recording.lost_bytes as u64,
            bytes,
            "copy the file again",
        );
        self.add(
            "records of unknown types".into(),
            "warning",
            recording.n_unknown,
            "skipped: written by a newer perf or kernel",
            "use a newer nsight-decode",
        );
        let before = "a trace is entered at a PSB packet; what is before the first is lost";
        self.add("PT bytes before the first PSB".into(), "info", counts.bytes_before_psb, before, "");
        let joints = "two ways of decoding the same differ: the second one counts";
        self.add(
            "slices that contradict each other".into(),
            "error",
            counts.contradictions,
            joints,
            "please report it with the file",
        );
        let borrowed = "packets and branches were not in the expected order: times are libipt's up to the next begin, and may be late";
        self.add(
            "stretches with less exact times".into(),
            "info",
            counts.borrowed,
            borrowed,
            "please report it with the file",
        );
        let guest = "records of perf kvm";
        self.add("guest records".into(), "info", recording.side.guest_records, guest, "");
        for loss in &mut self.0[from..] {
            loss.of_decoder = true;
        }
    }

    fn add(&mut self, what: String, severity: &'static str, count: u64, detail: &str, remedy: &'static str) {
        if count > 0 {
            let detail = detail.to_owned();
            self.0.push(Loss { what, severity, count, detail, remedy, of_decoder: false });
        }
    }

    /// For the tables' account, which knows of what the edges' events tell.
    pub fn json(&self) -> impl Iterator<Item = Value> + '_ {
        self.0.iter().filter(|l| l.of_decoder).map(|l| {
            json!({"cause": l.what, "severity": l.severity, "count": l.count, "detail": l.detail, "remedy": l.remedy})
        })
    }

    /// To stderr.
    pub fn print(&self, counts: &Counts) {
        eprintln!(
            "{} instructions, {} edges, {:.1} MB of Intel PT",
            grouped(counts.insns),
            grouped(counts.edges),
            counts.bytes as f64 / 1e6
        );
        for loss in &self.0 {
            eprintln!("{}: {}: {}: {}", loss.severity, loss.what, grouped(loss.count), loss.detail);
            if !loss.remedy.is_empty() {
                eprintln!("hint: {}", loss.remedy);
            }
        }
    }
}

/// 1234567 as 1,234,567.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
