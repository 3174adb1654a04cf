// SPDX-License-Identifier: GPL-2.0-only
//! Compiled BPF programs, which perf saves in a header feature: no other file has their code.

use crate::perfdata::layout::{u32_at, u64_at};

/// One function of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfCode {
    pub address: u64,
    pub code: Vec<u8>,
}

/// Offsets in `struct bpf_prog_info` of include/uapi/linux/bpf.h. New kernels only append fields to it.
mod info {
    pub const JITED_LEN: usize = 16;
    pub const JITED_INSNS: usize = 24;
    pub const N_KSYMS: usize = 104;
    pub const N_FUNC_LENS: usize = 108;
    pub const KSYMS: usize = 112;
    pub const FUNC_LENS: usize = 120;
}

/// `struct perf_bpil` without its variable part.
const HEADER: usize = 16;

/// The programs of a BPF_PROG_INFO feature that can be read.
pub fn programs(feature: &[u8]) -> Vec<BpfCode> {
    let mut found = Vec::new();
    let mut at = 4;
    for _ in 0..u32_at(feature, 0) {
        let Some(rest) = feature.get(at..).filter(|rest| rest.len() > HEADER) else { break };
        let (info_len, data_len) = (u32_at(rest, 0) as usize, u32_at(rest, 4) as usize);
        let end = HEADER.saturating_add(info_len).saturating_add(data_len);
        let (Some(info), Some(data)) =
            (rest.get(HEADER..HEADER + info_len), rest.get(HEADER + info_len..end))
        else {
            break;
        };
        functions(info, data, &mut found);
        at += end;
    }
    found
}

/// The functions of one program: their code is stored contiguously.
fn functions(info: &[u8], data: &[u8], found: &mut Vec<BpfCode>) {
    let part = |offset: u64, size: usize| {
        let offset = usize::try_from(offset).ok()?;
        data.get(offset..offset.checked_add(size)?)
    };
    let n = u32_at(info, info::N_KSYMS).min(u32_at(info, info::N_FUNC_LENS)) as usize;
    let Some(code) = part(u64_at(info, info::JITED_INSNS), u32_at(info, info::JITED_LEN) as usize) else {
        return;
    };
    let Some(addresses) = part(u64_at(info, info::KSYMS), n.saturating_mul(8)) else { return };
    let Some(lengths) = part(u64_at(info, info::FUNC_LENS), n.saturating_mul(4)) else { return };
    let mut begin = 0usize;
    for index in 0..n {
        let length = u32_at(lengths, 4 * index) as usize;
        let Some(code) = begin.checked_add(length).and_then(|end| code.get(begin..end)) else { return };
        if length > 0 {
            found.push(BpfCode { address: u64_at(addresses, 8 * index), code: code.to_vec() });
        }
        begin += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature() -> Vec<u8> {
        let mut info = vec![0u8; 128];
        info[16..20].copy_from_slice(&5u32.to_le_bytes());
        for (at, value) in [(24, 0u64), (112, 8), (120, 24)] {
            info[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        info[104..108].copy_from_slice(&2u32.to_le_bytes());
        info[108..112].copy_from_slice(&2u32.to_le_bytes());
        let mut data = vec![1, 2, 3, 4, 5, 0, 0, 0];
        data.extend(0x1000u64.to_le_bytes());
        data.extend(0x2000u64.to_le_bytes());
        data.extend([3, 0, 0, 0, 2, 0, 0, 0]);
        let mut bytes = 1u32.to_le_bytes().to_vec();
        bytes.extend((info.len() as u32).to_le_bytes());
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(info);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn each_function_has_its_part_of_the_code() {
        let two =
            [BpfCode { address: 0x1000, code: vec![1, 2, 3] }, BpfCode { address: 0x2000, code: vec![4, 5] }];
        assert_eq!(programs(&feature()), two);
    }

    #[test]
    fn what_is_cut_or_damaged_is_left_out() {
        let whole = feature();
        for end in 0..whole.len() {
            programs(&whole[..end]);
            let mut damaged = whole.clone();
            damaged[end] = 0xff;
            programs(&damaged);
        }
    }
}
