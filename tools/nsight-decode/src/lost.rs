// SPDX-License-Identifier: GPL-2.0-only
//! What a run lost, including losses that no edge event reports; and its text.

use nsight_decode::losses::{Ledger, Loss};
use nsight_decode::perfdata::Times;
use nsight_decode::pipeline::Counts;

use crate::numbers::grouped;
use crate::source::Opened;

/// Objects that are reported one by one.
const MOST_OBJECTS: usize = 10;

/// All losses: those that decoding counted, those of the file, and missing code.
pub fn of(opened: &Opened, counts: &Counts) -> Ledger {
    let mut ledger = counts.losses.clone();
    of_code(opened, &mut ledger);
    let recording = &opened.recording;
    ledger.add(Loss::FileCut, recording.file.cut.into());
    ledger.add(Loss::BytesUnread, recording.lost_bytes as u64);
    ledger.add(Loss::UnknownRecords, recording.n_unknown);
    ledger.add(Loss::GuestRecords, recording.side.guest_records);
    ledger
}

fn of_code(Opened { recording, code }: &Opened, ledger: &mut Ledger) {
    ledger.add(Loss::KernelMissing, (recording.config.kernel && !code.kernel.is_known()).into());
    ledger.add(Loss::TimesAreTicks, (recording.config.times == Times::Ticks).into());
    ledger.add(Loss::TimesAbsent, (recording.config.times == Times::Absent).into());
    ledger.add(Loss::CpuUnknown, recording.cpu_model().is_none().into());
    ledger.add(Loss::KernelChanges, code.kernel.pokes_left_out as u64);
    for (index, (object, count, why)) in code.lacking().into_iter().enumerate() {
        match index < MOST_OBJECTS {
            true => ledger.add_object(Loss::ObjectMissing, count, object, why),
            false => ledger.add(Loss::ObjectsMissing, count),
        }
    }
}

/// Prints the losses to stderr.
pub fn print(losses: &Ledger) {
    for row in losses.rows() {
        let words = row.loss.words();
        let (severity, cause, detail) =
            (words.severity.name(), row.text(words.cause), row.text(words.detail));
        eprintln!("{severity}: {cause}: {}: {detail}", grouped(row.count));
        if !words.remedy.is_empty() {
            eprintln!("hint: {}", words.remedy);
        }
    }
}
