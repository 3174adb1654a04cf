// SPDX-License-Identifier: GPL-2.0-only
//! The contents of a perf.data file: Intel PT data, and the side-band that explains them.

mod file;
pub mod layout;
mod side_band;
mod switches;
mod time;

use std::collections::BTreeMap;
use std::path::Path;

pub use file::{Attr, File, Record, SampleIds, RELEASED};
pub use side_band::{BuildId, Ksymbol, Loss, LossKind, Map, Poke, SideBand, TaskEvent, TaskEventKind};
pub use switches::{Reader as SwitchReader, Switch, Switches};
pub use time::{widen, TimeConv};

use crate::error::{Error, Result};
use layout::{attr, feature, pt, record, u32_at, u64_at};

/// AUXTRACE_INFO of intel_pt; tools/perf/util/intel-pt.h names its words.
#[derive(Clone, Debug, Default)]
pub struct PtInfo {
    pub pmu: u32,
    pub conv: TimeConv,
    /// `conv` gives the relation of perf's clock to TSC.
    pub has_clock: bool,
    pub tsc_bit: u64,
    pub noretcomp_bit: u64,
    pub have_sched_switch: u64,
    pub snapshot: bool,
    pub mtc_bit: u64,
    pub mtc_freq_bits: u64,
    /// TSC ticks per CTC tick, as a fraction.
    pub tsc_ctc: (u64, u64),
    pub cyc_bit: u64,
    pub max_non_turbo: u64,
}

/// The unit of times in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// ns of perf's clock.
    #[default]
    Clock,
    /// TSC ticks: their relation to perf's clock is not known, nor is the time of records outside the trace.
    Ticks,
    /// All 0: there are no timing packets; the order is that of the packets in each buffer.
    Absent,
}

/// The configuration of the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PtConfig {
    pub cyc: bool,
    pub mtc: Option<u8>,
    pub times: Times,
    pub ret_compression: bool,
    pub kernel: bool,
    pub user: bool,
}

/// PT data that perf took from one buffer at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the data in the file.
    pub at: usize,
    pub size: usize,
    /// Offset of the data in the buffer's stream since the recording began.
    pub offset: u64,
    /// TSC when perf took the data.
    pub reference: u64,
    /// The thread that perf names beside the data; negative: none.
    pub tid: i32,
}

/// The CPU or thread whose data a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Cpu(i32),
    Thread(i32),
}

pub struct Recording {
    pub file: File,
    pub info: PtInfo,
    pub config: PtConfig,
    pub streams: BTreeMap<Owner, Vec<Chunk>>,
    pub side: SideBand,
    /// Bytes of records that could not be read.
    pub lost_bytes: usize,
    /// Records whose type is newer than this program.
    pub n_unknown: u64,
    /// Family, model and stepping, if the file does not have them.
    pub cpu: Option<(u16, u8, u8)>,
}

/// `PERF_AUXTRACE_*`, for the error text when the file has another kind of trace.
const AUXTRACE_TYPES: [&str; 7] = [
    "unknown data",
    "Intel PT",
    "Intel BTS",
    "CoreSight (ARM)",
    "SPE (ARM)",
    "s390 CPU sampling data",
    "PTT (HiSilicon)",
];

const RECORD_PT: &str =
    "record with perf record -e intel_pt//; nsight-record does so where the CPU has Intel PT";

impl Recording {
    /// Whether this machine made the recording, by its host name; true if the recording has none.
    pub fn is_of_this_machine(&self) -> bool {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.file.text(feature::HOSTNAME).is_none_or(|name| name == own.trim_end())
    }

    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        if let Some(arch) = file.text(feature::ARCH).filter(|arch| arch != "x86_64") {
            return Err(Error::no_pt(
                &file.path,
                format_args!("recorded on {arch}"),
                "only x86_64 is decoded: Intel PT of 32-bit kernels is not",
            ));
        }
        let ids = SampleIds::new(&file.attrs);
        let mut info = None;
        let mut streams: BTreeMap<Owner, Vec<Chunk>> = BTreeMap::new();
        let mut side = SideBand::default();
        let mut n_unknown = 0;
        let mut records = file.records();
        for record in &mut records {
            match record.kind {
                record::AUXTRACE_INFO => info = Some(auxtrace_info(&file.path, &record)?),
                record::AUXTRACE => {
                    let (owner, chunk) = chunk(&file, &record);
                    if chunk.size > 0 {
                        streams.entry(owner).or_default().push(chunk);
                    }
                }
                record::COMPRESSED | record::COMPRESSED2 => {
                    return Err(Error::input(
                        &file.path,
                        "has compressed records",
                        "record without -z (--compression-level)",
                    ))
                }
                kind if layout::is_unknown(kind) => n_unknown += 1,
                _ => side.take(&record, &ids),
            }
        }
        let lost_bytes = records.lost_bytes;
        let Some(mut info) = info else {
            if let Some(cpu) = file.text(feature::CPUID).filter(|cpu| !cpu.starts_with("GenuineIntel")) {
                return Err(Error::no_pt(
                    &file.path,
                    format_args!("has no Intel PT: recorded on {cpu}, which is no CPU of Intel"),
                    "record on an Intel CPU; elsewhere nsight-record uses mode tracepoints",
                ));
            }
            return Err(Error::no_pt(&file.path, "has no Intel PT: no event of it was recorded", RECORD_PT));
        };
        let config = config(&file, &info)?;
        if streams.is_empty() {
            return Err(Error::no_pt(
                &file.path,
                "has no Intel PT data, though the event was recorded",
                if file.cut {
                    "perf was killed before it wrote any: let it end by SIGINT"
                } else {
                    "did anything run? perf record -a, or a command that runs longer"
                },
            ));
        }
        if config.times != Times::Clock {
            side.forget_times();
            info.conv = TimeConv::new(0, 1, 0);
        }
        side.finish()?;
        // Programs that merge or repair files may write the data of a buffer in another order.
        streams.values_mut().for_each(|chunks| chunks.sort_by_key(|c| (c.reference, c.offset)));
        Ok(Self { config, info, streams, side, lost_bytes, n_unknown, cpu: None, file })
    }

    /// Family, model and stepping of the CPU, as libipt needs them for its errata.
    pub fn cpu_model(&self) -> Option<(u16, u8, u8)> {
        self.cpu.or_else(|| self.told_cpu())
    }

    fn told_cpu(&self) -> Option<(u16, u8, u8)> {
        let text = self.file.text(feature::CPUID)?;
        let mut parts = text.split(',');
        if parts.next() != Some("GenuineIntel") {
            return None;
        }
        let mut number = || parts.next()?.trim().parse::<u16>().ok();
        Some((number()?, number()? as u8, number()? as u8))
    }
}

fn auxtrace_info(path: &Path, record: &Record) -> Result<PtInfo> {
    let kind = u32_at(record.body, 0);
    if kind != 1 {
        let name = AUXTRACE_TYPES.get(kind as usize).copied().unwrap_or(AUXTRACE_TYPES[0]);
        return Err(Error::no_pt(path, format_args!("has {name} and no Intel PT"), RECORD_PT));
    }
    let word = |n: usize| u64_at(record.body, 8 + 8 * n);
    Ok(PtInfo {
        pmu: word(0) as u32,
        conv: TimeConv::new(word(1), word(2), word(3)),
        has_clock: word(4) != 0 && word(2) != 0,
        tsc_bit: word(5),
        noretcomp_bit: word(6),
        have_sched_switch: word(7),
        snapshot: word(8) != 0,
        mtc_bit: word(10),
        mtc_freq_bits: word(11),
        tsc_ctc: (word(12), word(13)),
        cyc_bit: word(14),
        max_non_turbo: word(15),
    })
}

fn chunk(file: &File, record: &Record) -> (Owner, Chunk) {
    let body = record.body;
    let at = record.at + 8 + body.len();
    let (tid, cpu) = (u32_at(body, 28) as i32, u32_at(body, 32) as i32);
    let size = u64_at(body, 0).min((file.size() - at) as u64) as usize;
    let chunk = Chunk { at, size, offset: u64_at(body, 8), reference: u64_at(body, 16), tid };
    (if cpu >= 0 { Owner::Cpu(cpu) } else { Owner::Thread(tid) }, chunk)
}

fn config(file: &File, info: &PtInfo) -> Result<PtConfig> {
    let mut events = file.attrs.iter().filter(|a| a.kind == info.pmu);
    let Some(event) = events.next() else {
        return Err(Error::no_pt(&file.path, "names no Intel PT event, though it has its data", RECORD_PT));
    };
    // perf refuses to record several.
    if events.any(|other| other.config != event.config) {
        let what =
            "has Intel PT events with different settings, and does not tell which data belong to which";
        return Err(Error::input(&file.path, what, "record one intel_pt event"));
    }
    let no_branches = event.config & (pt::PASS | pt::BRANCH) == pt::PASS;
    if no_branches || event.config & pt::NO_TNT != 0 {
        let (what, hint) = match no_branches {
            true => ("branches", "leave branch=1, which is the default"),
            false => ("packets of conditional branches (TNT)", "leave notnt=0, which is the default"),
        };
        return Err(Error::no_pt(&file.path, format_args!("recorded without {what}"), hint));
    }
    let has = |bit| bit != 0 && event.config & bit == bit;
    let times = match () {
        () if info.tsc_bit != 0 && !has(info.tsc_bit) => Times::Absent,
        () if !info.has_clock => Times::Ticks,
        () => Times::Clock,
    };
    let freq = info.mtc_freq_bits;
    let mtc = has(info.mtc_bit).then(|| ((event.config & freq) >> freq.trailing_zeros().min(63)) as u8);
    Ok(PtConfig {
        cyc: has(info.cyc_bit),
        mtc,
        times,
        ret_compression: !has(info.noretcomp_bit),
        kernel: event.flags & attr::EXCLUDE_KERNEL == 0,
        user: event.flags & attr::EXCLUDE_USER == 0,
    })
}
