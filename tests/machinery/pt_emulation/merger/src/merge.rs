// SPDX-License-Identifier: GPL-2.0-only
//! Merges side-band and AUX data.

use anyhow::{ensure, Context, Result};

use crate::aux::{Aux, Chunk, Cpu};
use crate::file::{Event, File, AUXTRACE_SIZE};
use crate::layout::{attr, feature, put_u32, put_u64, record, string, u32_at};
use crate::side_band::{rename_vdso, SampleId, TimeConv};

/// `PERF_AUXTRACE_INTEL_PT`
const AUXTRACE_TYPE: u32 = 1;
/// Positions of the driver's terms in `attr.config`.
const CONFIG_CYC: u64 = 1 << 1;
const CONFIG_MTC: u64 = 1 << 9;
const CONFIG_TSC: u64 = 1 << 10;
const CONFIG_NORETCOMP: u64 = 1 << 11;
const CONFIG_MTC_PERIOD: u64 = 0xf << 14;
/// Equal to the ratio of the CBR packets, so that a cycle is a tick of the TSC.
const MAX_NON_TURBO_RATIO: u64 = 10;

const PERIOD: u64 = 1 << 8;
/// PERF_RECORD_SWITCH
const SWITCH: u32 = 14;

/// The merged file, and the offsets of its AUXTRACE records (for `File::write`).
pub struct Merged {
    pub file: File,
    pub index: Vec<usize>,
    pub n_vdso: usize,
}

/// The dummy event that tracks nothing: it becomes the intel_pt event.
fn carrier(events: &[Event]) -> Result<usize> {
    let tracks = attr::MMAP | attr::COMM | attr::KSYMBOL | attr::TEXT_POKE;
    events
        .iter()
        .position(|e| e.is_dummy() && e.flags() & tracks == 0)
        .context("no dummy event to take intel_pt's place: record with -e dummy:u -e dummy:k")
}

fn become_intel_pt(event: &mut Event, pmu: u32, aux: &Aux) {
    let excluded = attr::EXCLUDE_USER | attr::EXCLUDE_KERNEL | attr::EXCLUDE_HV;
    let mut flags = event.flags() & !excluded & !attr::FREQ;
    if aux.options.user_only {
        flags |= attr::EXCLUDE_KERNEL;
    }
    if aux.options.kernel_only {
        flags |= attr::EXCLUDE_USER;
    }
    let sample_type = event.sample_type() & !PERIOD;
    put_u32(&mut event.attr, attr::TYPE, pmu);
    put_u64(&mut event.attr, attr::CONFIG, aux.config);
    put_u64(&mut event.attr, attr::PERIOD, 1);
    put_u64(&mut event.attr, attr::SAMPLE_TYPE, sample_type);
    put_u64(&mut event.attr, attr::FLAGS, flags);
    event.name = "intel_pt//".to_owned();
}

/// Add intel_pt to the PMUs of the machine; returns its type.
fn add_pmu(file: &mut File) -> u32 {
    let old = file.features.remove(&feature::PMU_MAPPINGS).unwrap_or_default();
    let mut highest = 7;
    let mut at = 4;
    for _ in 0..u32_at(&old, 0) {
        highest = highest.max(u32_at(&old, at));
        at += 8 + u32_at(&old, at + 4) as usize;
    }
    let pmu = highest + 1;
    let mut new = (u32_at(&old, 0) + 1).to_le_bytes().to_vec();
    new.extend(old.get(4..).unwrap_or_default());
    new.extend(pmu.to_le_bytes());
    new.extend(string("intel_pt"));
    file.features.insert(feature::PMU_MAPPINGS, new);
    pmu
}

/// AUXTRACE_INFO; tools/perf/util/intel-pt.h names its words.
fn auxtrace_info(pmu: u32, conv: TimeConv, aux: &Aux, sched_switch: u64, per_cpu: bool) -> Vec<u8> {
    let words = [
        pmu.into(),
        conv.shift,
        conv.mult,
        conv.zero,
        1, // cap_user_time_zero
        CONFIG_TSC,
        CONFIG_NORETCOMP,
        sched_switch,
        aux.options.snapshot.is_some().into(),
        per_cpu.into(), // per_cpu_mmaps
        CONFIG_MTC,
        CONFIG_MTC_PERIOD,
        aux.options.tsc_ctc_n.into(),
        aux.options.tsc_ctc_d.into(),
        CONFIG_CYC,
        MAX_NON_TURBO_RATIO,
        0, // length of the filter string
    ];
    let mut body = AUXTRACE_TYPE.to_le_bytes().to_vec();
    body.extend(0u32.to_le_bytes());
    body.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
    crate::layout::record(record::AUXTRACE_INFO, &body)
}

/// How perf follows context switches: by the records that name both tasks, or by the plain ones.
fn sched_switch(file: &File) -> Result<u64> {
    let mut best = 0;
    for entry in file.records() {
        match u32_at(entry?.1, 0) {
            record::SWITCH_CPU_WIDE => return Ok(3),
            SWITCH => best = 2,
            _ => {}
        }
    }
    Ok(best)
}

/// The buffers' owners.
pub enum Buffers<'a> {
    /// Buffers of each CPU.
    Cpus(&'a Aux),
    /// Buffers of threads, by tid, as with `perf record --per-thread`: CPUs and switches are not recorded.
    Threads(&'a [(u32, Aux)]),
}

/// AUX data of one buffer, and the time when perf took it.
struct Piece<'a> {
    time: u64,
    /// The buffer's number.
    cpu: u32,
    thread: Option<u32>,
    chunk: &'a Chunk,
    bytes: &'a [u8],
}

impl Piece<'_> {
    /// Writes the AUX record, then the AUXTRACE record and its data; adds the latter's offset to `index`.
    fn write(&self, out: &mut Vec<u8>, id: SampleId, event: &Event, index: &mut Vec<usize>) {
        let Chunk { offset, size, tsc, flags } = *self.chunk;
        let mut body: Vec<u8> =
            [offset as u64, size as u64, flags].iter().flat_map(|w| w.to_le_bytes()).collect();
        let event_id = event.ids.get(self.cpu as usize).or(event.ids.first()).copied().unwrap_or(0);
        body.extend(id.bytes(0, self.thread.unwrap_or(0), self.time, self.cpu, event_id));
        out.extend(crate::layout::record(record::AUX, &body));

        index.push(out.len());
        let padded = size.next_multiple_of(8);
        // perf sorts by the reference, that is, the TSC when the data were taken; 0 would mean unknown.
        let words = [padded as u64, offset as u64, tsc.max(1)];
        let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let any = u32::MAX;
        let (tid, cpu) = self.thread.map_or((any, self.cpu), |tid| (tid, any));
        body.extend([self.cpu, tid, cpu, 0].iter().flat_map(|w| w.to_le_bytes()));
        out.extend(crate::layout::record(record::AUXTRACE, &body));
        debug_assert_eq!(out.len() - index[index.len() - 1], AUXTRACE_SIZE);
        out.extend(self.bytes);
        out.resize(out.len() + padded - size, 0);
    }
}

/// `vdso`: the name of the guest's vDSO in mapping records.
pub fn merge(mut file: File, aux: &Aux, buffers: Buffers, vdso: Option<&str>) -> Result<Merged> {
    let carrier = carrier(&file.events)?;
    let conv = TimeConv::find(&file)?;
    let per_cpu = matches!(buffers, Buffers::Cpus(_));
    let switches = if per_cpu { sched_switch(&file)? } else { 0 };
    let pmu = add_pmu(&mut file);
    let mut event = file.events.remove(carrier);
    ensure!(!file.events.is_empty(), "only one event: record with -e dummy:u -e dummy:k");
    let id = SampleId::new(event.sample_type());
    become_intel_pt(&mut event, pmu, aux);

    let mut pieces: Vec<Piece> = Vec::new();
    let sources: Vec<(u32, Option<u32>, &Cpu)> = match buffers {
        Buffers::Cpus(aux) => aux.cpus.iter().map(|cpu| (cpu.cpu, None, cpu)).collect(),
        Buffers::Threads(threads) => {
            let all =
                threads.iter().enumerate().map(|(n, (tid, aux))| (n as u32, Some(*tid), aux.cpus.first()));
            all.filter_map(|(n, tid, cpu)| cpu.map(|cpu| (n, tid, cpu))).collect()
        }
    };
    for (number, thread, cpu) in sources {
        for chunk in &cpu.chunks {
            let bytes = &cpu.bytes[chunk.offset..chunk.offset + chunk.size];
            pieces.push(Piece { time: conv.ns(chunk.tsc), cpu: number, thread, chunk, bytes });
        }
    }
    pieces.sort_by_key(|piece| piece.time);

    let mut out = auxtrace_info(pmu, conv, aux, switches, per_cpu);
    let mut index = Vec::new();
    let mut n_vdso = 0;
    let mut next = pieces.iter().peekable();
    for entry in file.records() {
        let (_, bytes) = entry?;
        if !per_cpu && matches!(u32_at(bytes, 0), SWITCH | record::SWITCH_CPU_WIDE) {
            continue;
        }
        // Insert it before the first later record: perf flushes its queue at the ends of rounds, and after the next one
        // it would be out of order.
        if let Some(time) = id.time(bytes) {
            while let Some(piece) = next.next_if(|piece| piece.time < time) {
                piece.write(&mut out, id, &event, &mut index);
            }
        }
        match vdso.and_then(|name| rename_vdso(bytes, id, name)) {
            Some(renamed) => {
                n_vdso += 1;
                out.extend(renamed);
            }
            None => out.extend(bytes),
        }
    }
    for piece in next {
        piece.write(&mut out, id, &event, &mut index);
    }
    file.data = out;
    file.events.insert(0, event);
    Ok(Merged { file, index, n_vdso })
}
