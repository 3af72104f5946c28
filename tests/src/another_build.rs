//! Makes another build of node-lb without a compiler: the same program with other eBPF instructions
//! of the same meaning. As after a build by another compiler, every program is different, and every
//! map is the same.

use std::{fs, ops::Range, path::Path};

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _, SectionKind};

/// Length of an instruction in bytes. One that loads 64 bits takes two.
const INSTRUCTION: usize = 8;
const LOAD_64: u8 = 0x18;
/// Sets a register to a constant of 32 bits, with its sign in the upper half.
const MOVE: u8 = 0xb7;
/// Sets it with zeros in the upper half. The effect is the same if the constant is not negative.
const MOVE_32: u8 = 0xb4;

/// How an ELF file for eBPF, of 64 bits and in this machine's byte order, begins.
const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
const MACHINE: Range<usize> = 18..20;
const BPF: [u8; 2] = 247_u16.to_le_bytes();

/// Writes another build of the program at `program` to `to`, executable.
///
/// # Errors
/// If that is not a program with one eBPF object inside, or files cannot be read or written.
pub fn write(program: &Path, to: &Path) -> Result<()> {
    let mut bytes = fs::read(program).with_context(|| format!("{}", program.display()))?;
    let start = object_in(&bytes).context("there is no eBPF object in the program")?;
    let changed = rewrite(&mut bytes[start..])?;
    ensure!(changed > 0, "no instruction has another form");
    // A copy first, for its mode.
    fs::copy(program, to)
        .and_then(|_| fs::write(to, bytes))
        .with_context(|| format!("{}", to.display()))
}

/// Where the object begins.
fn object_in(program: &[u8]) -> Option<usize> {
    // It is aligned to at least four bytes, because it is used in place.
    (0..program.len()).step_by(4).find(|at| {
        let rest = &program[*at..];
        rest.starts_with(MAGIC) && rest.get(MACHINE) == Some(&BPF)
    })
}

/// Rewrites instructions in all programs of an object, and returns how many. Data after the object
/// does not matter.
fn rewrite(object: &mut [u8]) -> Result<usize> {
    let file = object::File::parse(&*object).context("the eBPF object is broken")?;
    let text = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .filter_map(|section| section.file_range());
    let text: Vec<_> = text.collect();
    let mut changed = 0;
    for (start, length) in text {
        let range = start as usize..(start + length) as usize;
        changed += rewrite_instructions(&mut object[range]);
    }
    Ok(changed)
}

fn rewrite_instructions(text: &mut [u8]) -> usize {
    let mut changed = 0;
    let mut instructions = text.chunks_exact_mut(INSTRUCTION);
    while let Some(instruction) = instructions.next() {
        let [code, registers, .., high] = instruction else {
            continue;
        };
        match *code {
            LOAD_64 => drop(instructions.next()),
            MOVE | MOVE_32 if *registers >> 4 == 0 && *high & 0x80 == 0 => {
                *code ^= MOVE ^ MOVE_32;
                changed += 1;
            }
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_constants_that_are_not_negative_are_moved_otherwise() {
        let mut text = [
            [MOVE, 0x01, 0, 0, 2, 0, 0, 0],
            [MOVE_32, 0x02, 0, 0, 2, 0, 0, 0],
            [MOVE, 0x01, 0, 0, 0xfe, 0xff, 0xff, 0xff],
            [LOAD_64, 0x01, 0, 0, 0, 0, 0, 0],
            // The second half of the previous instruction, and not an instruction itself.
            [MOVE, 0, 0, 0, 0, 0, 0, 0],
            [0xbf, 0x21, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        let before = text.clone();
        assert_eq!(rewrite_instructions(&mut text), 2);
        assert_eq!([text[0], text[8]], [MOVE_32, MOVE]);
        assert_eq!(text[9..], before[9..]);
        assert_eq!(rewrite_instructions(&mut text), 2);
        assert_eq!(text, before);
    }

    #[test]
    fn every_program_is_another_one() {
        let mut object = lb_datapath::OBJECT.to_vec();
        assert!(rewrite(&mut object).unwrap() > 10);
        let before = aya_obj::Object::parse(lb_datapath::OBJECT).unwrap();
        let after = aya_obj::Object::parse(&object).unwrap();
        for name in lb_datapath::hooks::programs() {
            let code = |object: &aya_obj::Object| {
                let key = object.programs[name].function_key();
                let instructions = &object.functions[&key].instructions;
                instructions
                    .iter()
                    .map(|insn| insn.code)
                    .collect::<Vec<_>>()
            };
            assert_ne!(code(&before), code(&after), "{name}");
        }
        assert_eq!(before.maps.len(), after.maps.len());
    }
}
