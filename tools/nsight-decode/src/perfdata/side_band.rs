// SPDX-License-Identifier: GPL-2.0-only
//! Records outside the PT data: which thread ran, what was mapped, what changed in the kernel, what was lost.

use super::file::{Record, SampleIds};
use super::layout::{aux, i32_at, misc, record, text_at, u16_at, u32_at, u64_at};
use super::switches::{Switch, Switches};
use crate::error::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildId {
    bytes: [u8; 20],
    size: u8,
}

impl BuildId {
    pub fn new(bytes: &[u8]) -> Self {
        let size = bytes.len().min(20);
        let mut id = Self { size: size as u8, ..Self::default() };
        id.bytes[..size].copy_from_slice(&bytes[..size]);
        id
    }

    pub fn hex(&self) -> String {
        self.bytes[..usize::from(self.size)].iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// Code mapped into a process, or a module into the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub begin: u64,
    pub end: u64,
    /// File offset of `begin`.
    pub offset: u64,
    pub name: String,
    pub build_id: Option<BuildId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEventKind {
    Map(Map),
    /// The process runs another program.
    Exec,
    Comm {
        tid: i32,
        name: String,
    },
    Fork {
        tid: i32,
        parent_pid: i32,
        /// perf reports a process that already existed; its mappings follow.
        synthesized: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent {
    pub time: u64,
    pub pid: i32,
    pub kind: TaskEventKind,
}

/// Kernel code that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poke {
    pub time: u64,
    pub address: u64,
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

/// A piece of kernel code that was added or removed: BPF programs, trampolines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ksymbol {
    pub time: u64,
    pub address: u64,
    pub size: u32,
    pub unregister: bool,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// PT data were lost at the end of a buffer that was full; value: flags of the AUX record.
    AuxTruncated,
    /// New data overwrote old data.
    AuxOverwritten,
    /// Lost to KVM while a guest ran, or to another user of the hardware.
    AuxPartial,
    /// Lost side-band records; value: how many.
    Records,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub time: u64,
    pub cpu: i32,
    pub pid: i32,
    pub tid: i32,
    pub kind: LossKind,
    pub value: u64,
}

#[derive(Debug, Default)]
pub struct SideBand {
    /// In time order.
    pub tasks: Vec<TaskEvent>,
    pub kernel_maps: Vec<Map>,
    pub switches: Switches,
    pub pokes: Vec<Poke>,
    pub ksymbols: Vec<Ksymbol>,
    pub losses: Vec<Loss>,
    /// perf's totals of lost records at the end of the file, and the time of the last such record.
    pub lost_totals: (u64, u64),
    /// (cpu, pid, tid) of ITRACE_START: the thread that ran when tracing began.
    pub starts: Vec<(i32, i32, i32)>,
    /// Events of another machine (perf kvm).
    pub guest_records: u64,
}

const PROT_EXEC: u32 = 4;

impl SideBand {
    /// Takes the information of a record.
    pub fn take(&mut self, record: &Record, ids: &SampleIds) {
        let body = record.body;
        let (id, end) = ids.of(record);
        let cpu = id.cpu.map_or(-1, |cpu| cpu as i32);
        let own = &body[..end];
        let (pid, tid) = (i32_at(own, 0), i32_at(own, 4));
        let loss = |kind, value| Loss { time: id.time, cpu, pid: id.pid, tid: id.tid, kind, value };
        let mut task = |pid, kind| self.tasks.push(TaskEvent { time: id.time, pid, kind });
        match record.kind {
            record::MMAP | record::MMAP2 => match record.misc & misc::CPUMODE {
                misc::GUEST_KERNEL | misc::GUEST_USER => self.guest_records += 1,
                misc::KERNEL => self.kernel_maps.extend(map(record, own).filter(|_| pid == -1)),
                _ => {
                    if let Some(map) = map(record, own) {
                        task(pid, TaskEventKind::Map(map));
                    }
                }
            },
            record::COMM => {
                if record.misc & misc::BIT13 != 0 {
                    task(pid, TaskEventKind::Exec);
                }
                task(pid, TaskEventKind::Comm { tid, name: text_at(own, 8) });
            }
            record::FORK => {
                let kind = TaskEventKind::Fork {
                    tid: i32_at(own, 8),
                    parent_pid: i32_at(own, 4),
                    synthesized: record.misc & misc::BIT13 != 0,
                };
                task(pid, kind);
            }
            record::SWITCH | record::SWITCH_CPU_WIDE => {
                let other = (record.kind == record::SWITCH_CPU_WIDE).then_some((pid, tid));
                let out = record.misc & misc::BIT13 != 0;
                self.switches.push(cpu, Switch { time: id.time, out, pid: id.pid, tid: id.tid, other });
            }
            record::AUX => {
                let flags = u64_at(own, 16);
                let kinds = [
                    (aux::TRUNCATED, LossKind::AuxTruncated),
                    (aux::OVERWRITE, LossKind::AuxOverwritten),
                    (aux::PARTIAL, LossKind::AuxPartial),
                ];
                for (flag, kind) in kinds {
                    if flags & flag != 0 {
                        // The lost amount is unknown, but the kept amount of this piece is known.
                        self.losses.push(loss(kind, u64_at(own, 8)));
                    }
                }
            }
            record::LOST => self.losses.push(loss(LossKind::Records, u64_at(own, 8))),
            record::LOST_SAMPLES => {
                self.lost_totals = (self.lost_totals.0.saturating_add(u64_at(own, 0)), id.time);
            }
            record::ITRACE_START => self.starts.push((cpu, pid, tid)),
            record::KSYMBOL => self.ksymbols.push(Ksymbol {
                time: id.time,
                address: u64_at(own, 0),
                size: u32_at(own, 8),
                unregister: u16_at(own, 14) & 1 != 0,
                name: text_at(own, 16),
            }),
            record::TEXT_POKE => {
                let (old, new) = (usize::from(u16_at(own, 8)), usize::from(u16_at(own, 10)));
                let bytes = own.get(12..12 + old + new).unwrap_or_default();
                if !bytes.is_empty() {
                    let (old, new) = bytes.split_at(old);
                    let (old, new) = (old.to_vec(), new.to_vec());
                    self.pokes.push(Poke { time: id.time, address: u64_at(own, 0), old, new });
                }
            }
            _ => {}
        }
    }

    /// For a trace whose times differ from those of records: all records count as earlier than the trace, and the
    /// running threads are unknown.
    pub fn forget_times(&mut self) {
        self.switches.clear();
        self.tasks.iter_mut().for_each(|e| e.time = 0);
        self.pokes.iter_mut().for_each(|p| p.time = 0);
        self.ksymbols.iter_mut().for_each(|k| k.time = 0);
        self.losses.iter_mut().for_each(|l| l.time = 0);
    }

    /// Sorts by time: the records of each CPU are in order, but not all together.
    pub fn finish(&mut self) -> Result<()> {
        self.add_lost_totals();
        self.tasks.sort_by_key(|e| e.time);
        self.pokes.sort_by_key(|p| p.time);
        self.ksymbols.sort_by_key(|k| k.time);
        self.losses.sort_by_key(|l| l.time);
        self.switches.finish()
    }
}

impl SideBand {
    /// The totals of LOST_SAMPLES include those of LOST records. Their CPU is meaningless: perf writes the first one.
    fn add_lost_totals(&mut self) {
        let told = self.losses.iter().filter(|l| l.kind == LossKind::Records).map(|l| l.value);
        let (total, time) = std::mem::take(&mut self.lost_totals);
        let value = total.saturating_sub(told.fold(0, u64::saturating_add));
        if value > 0 {
            self.losses.push(Loss { time, cpu: -1, pid: -1, tid: -1, kind: LossKind::Records, value });
        }
    }
}

/// An executable mapping. None: data, or a damaged record.
fn map(record: &Record, own: &[u8]) -> Option<Map> {
    let (begin, length) = (u64_at(own, 8), u64_at(own, 16));
    let (name_at, executable, build_id) = if record.kind == record::MMAP {
        (32, record.misc & misc::BIT13 == 0, None)
    } else {
        let id = (record.misc & misc::MMAP_BUILD_ID != 0).then(|| {
            let size = usize::from(own.get(32).copied().unwrap_or(0)).min(20);
            BuildId::new(own.get(36..36 + size).unwrap_or_default())
        });
        (64, u32_at(own, 56) & PROT_EXEC != 0, id)
    };
    let end = begin.checked_add(length)?;
    let name = text_at(own, name_at);
    let map = Map { begin, end, offset: u64_at(own, 24), name, build_id };
    (executable && length > 0 && !map.name.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(kind: u32, misc: u16, body: &[u8]) -> SideBand {
        let mut side = SideBand::default();
        side.take(&Record { at: 0, kind, misc, body }, &SampleIds::new(&[]));
        side
    }

    fn mmap2(prot: u32) -> Vec<u8> {
        let mut body = vec![7, 0, 0, 0, 8, 0, 0, 0];
        for word in [0x1000u64, 0x2000, 0x3000, 0, 0, 0] {
            body.extend(word.to_le_bytes());
        }
        body.extend(prot.to_le_bytes());
        body.extend(2u32.to_le_bytes());
        body.extend(b"/a\0\0\0\0\0\0");
        body
    }

    #[test]
    fn only_executable_mappings_count() {
        let side = take(record::MMAP2, 2, &mmap2(5));
        let map = Map { begin: 0x1000, end: 0x3000, offset: 0x3000, name: "/a".into(), build_id: None };
        assert_eq!(side.tasks, [TaskEvent { time: 0, pid: 7, kind: TaskEventKind::Map(map) }]);
        assert!(take(record::MMAP2, 2, &mmap2(1)).tasks.is_empty());
    }

    #[test]
    fn a_mapping_that_wraps_is_none() {
        let mut body = mmap2(5);
        body[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(take(record::MMAP2, 2, &body).tasks.is_empty());
    }

    #[test]
    fn build_ids_take_the_place_of_the_inode() {
        let mut body = mmap2(5);
        body[32] = 3;
        body[36..39].copy_from_slice(&[0xab, 0xcd, 0x01]);
        let side = take(record::MMAP2, 2 | misc::MMAP_BUILD_ID, &body);
        let TaskEventKind::Map(map) = &side.tasks[0].kind else { panic!("no map") };
        assert_eq!(map.build_id.unwrap().hex(), "abcd01");
    }

    #[test]
    fn short_records_do_no_harm() {
        for kind in 0..90 {
            for length in 0..40 {
                take(kind, misc::BIT13, &vec![0xff; length]);
            }
        }
    }

    #[test]
    fn exec_comes_before_the_new_name() {
        let mut body = vec![7, 0, 0, 0, 7, 0, 0, 0];
        body.extend(b"new\0\0\0\0\0");
        let side = take(record::COMM, misc::BIT13, &body);
        assert_eq!(side.tasks[0].kind, TaskEventKind::Exec);
        assert_eq!(side.tasks[1].kind, TaskEventKind::Comm { tid: 7, name: "new".into() });
    }

    #[test]
    fn a_poke_has_old_and_new_bytes() {
        let mut body = 0x1234u64.to_le_bytes().to_vec();
        body.extend([2, 0, 2, 0, 0xaa, 0xbb, 0xcc, 0xdd]);
        let poke = &take(record::TEXT_POKE, 0, &body).pokes[0];
        assert_eq!(
            (poke.address, &poke.old[..], &poke.new[..]),
            (0x1234, &[0xaa, 0xbb][..], &[0xcc, 0xdd][..])
        );
    }
}
