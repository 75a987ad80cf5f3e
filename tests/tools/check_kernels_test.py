# SPDX-License-Identifier: Apache-2.0
"""scripts/check-kernels on listings made up here: what it takes for a loop, for the stack, and for worse.

The first argument is the script.
"""
import importlib.machinery
import importlib.util
import sys
import unittest

SCRIPT = sys.argv.pop(1)
loader = importlib.machinery.SourceFileLoader("check_kernels", SCRIPT)
sys.dont_write_bytecode = True
check = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_kernels", loader))
loader.exec_module(check)


def function(*instructions):
    """Addresses 0x10, 0x11, ..."""
    lines = "\n".join(f"  {16 + i:x}:\t{text}" for i, text in enumerate(instructions))
    return check.functions_of(f"Disassembly of section .text:\n\n0000000000000010 <kernel>:\n{lines}\n")["kernel"]


class Stack(unittest.TestCase):
    def accesses(self, *instructions):
        return check.stack_accesses(function(*instructions))

    def test_loads_and_stores_in_a_loop_are_counted(self):
        self.assertEqual(self.accesses("xor %eax,%eax", "vmovaps 0x20(%rsp),%ymm0", "vfmadd231ps 0x8(%rsp,%rax,4),%ymm1,%ymm2",
                                       "vmovaps %ymm0,(%rsp)", "jne 11 <kernel+0x1>", "ret"), 3)

    def test_outside_of_loops_nothing_is(self):
        self.assertEqual(self.accesses("push %rbp", "vmovaps 0x20(%rsp),%ymm0", "add $1,%eax", "jne 12 <kernel+0x2>",
                                       "vmovaps %ymm0,(%rsp)", "ret"), 0)

    def test_only_the_innermost_loop_counts(self):
        self.assertEqual(self.accesses("mov 0x8(%rsp),%rax", "mov 0x10(%rsp),%rcx", "dec %rcx", "jne 11 <kernel+0x1>",
                                       "jb 10 <kernel>", "ret"), 1)

    def test_a_loop_that_calls_is_not_innermost(self):
        self.assertEqual(self.accesses("mov 0x8(%rsp),%rax", "call 400 <tile>", "jne 10 <kernel>", "ret"), 0)

    def test_rbp_is_the_stack_only_where_it_is_the_frame(self):
        loop = ("vmovaps -0x40(%rbp),%ymm0", "jne 11 <kernel+0x1>", "ret")
        self.assertEqual(self.accesses("mov %rdi,%rbp", *loop), 0)
        self.assertEqual(self.accesses("mov %rsp,%rbp", *loop), 1)

    def test_addresses_are_no_traffic(self):
        self.assertEqual(self.accesses("lea 0x8(%rsp),%rax", "prefetcht0 0x40(%rsp)", "jne 10 <kernel>", "ret"), 0)

    def test_jumps_out_and_forward_make_no_loop(self):
        self.assertEqual(self.accesses("jmp 8 <other>", "mov 0x8(%rsp),%rax", "jne 13 <kernel+0x3>", "ret"), 0)


class Judging(unittest.TestCase):
    def test_instructions_may_grow_by_two_percent(self):
        judge = lambda count: check.judge_instructions({"mxfp4 1": count}, {"mxfp4 1": 10000})
        self.assertEqual(judge(10200), ([], []))
        self.assertEqual(len(judge(10201)[0]), 1)
        self.assertEqual(judge(9800), ([], []))
        self.assertEqual(len(judge(9799)[1]), 1)

    def test_calls_must_be_those_of_the_table(self):
        problems, _ = check.judge_instructions({"f32 1": 5}, {"f16 1": 5})
        self.assertEqual(len(problems), 2)

    def test_the_stack_may_not_grow_and_what_is_not_listed_has_none(self):
        judge = lambda count: check.judge_stack({"avx2 f": count} if count else {}, {"avx2 f": 4})
        self.assertEqual(judge(4), ([], []))
        self.assertEqual(len(judge(5)[0]), 1)
        self.assertEqual(len(judge(3)[1]), 1)
        self.assertEqual(len(judge(0)[1]), 1)
        self.assertEqual(len(check.judge_stack({"avx2 g": 1}, {"avx2 f": 4})[0]), 1)


if __name__ == "__main__":
    unittest.main()
