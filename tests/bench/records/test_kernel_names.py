import os

import pytest

from bench.records.kernel_names import is_chosen_by_library, kernel_name

#: One kernel of PyTorch as the program, kineto and ncu call it, and how it is spelled here.
ELEMENTWISE = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "std::array<char *, (unsigned long)1>>(int, T2, T3)",
    "at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<float>,std::array<char*,1ul>>",
)
mangled = pytest.mark.skipif(os.name == "nt", reason="Windows has no demangler of the C++ ABI")


@pytest.mark.parametrize("printed", [pytest.param(ELEMENTWISE[0], marks=mangled), *ELEMENTWISE[1:]])
def test_all_tools_names_of_one_kernel_become_one(printed):
    assert kernel_name(printed) == ELEMENTWISE[-1]


@mangled
@pytest.mark.parametrize(
    ("printed", "name"),
    [  # as nvcc 13.0 names them
        (
            "_Z1gIN36_GLOBAL__N__b5e37ede_4_t_cu__Z3runPf1SELm3ELin4ELj2EEvT_",
            "g<(anonymous namespace)::S,3ul,-4,2u>",
        ),
        ("_Z1gIZ3runPfEUliE_Lm1ELi0ELj1EEvT_", "g<run(float*)::{lambda(int)#1},1ul,0,1u>"),
        ("_Z1hIL1E1ELln2ELc97ELs3EEvPKfj", "h<(E)1,-2l,(char)97,(short)3>"),
        (
            "_ZN36_GLOBAL__N__b5e37ede_4_t_cu__Z3runPf1kIfLb1EEEvPT_i",
            "(anonymous namespace)::k<float,true>",
        ),
        ("_ZN6no_endE_of_it", "_ZN6no_endE_of_it"),
    ],
)
def test_a_programs_own_name_is_demangled_as_kineto_does(printed, name):
    assert kernel_name(printed) == name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void cutlass::Kernel<cutlass_80_tn>(T1::Params)", "cutlass::Kernel<cutlass_80_tn>"),
        (
            "void <unnamed>::softmax_warp_forward<float, (int)7, (bool)0>(T2 *, const T1 *, int)",
            "(anonymous namespace)::softmax_warp_forward<float,7,false>",
        ),
        ("f<unsigned int, (unsigned int)2, (long)-3, (bool)1>(int)", "f<unsigned int,2u,-3l,true>"),
        ("k(void (*)(int), float)", "k"),
        ("(anonymous namespace)::k(int)", "(anonymous namespace)::k"),
        ("f<g(int)::[lambda(int) (instance 1)]>(T1)", "f<g(int)::[lambda(int)(instance 1)]>"),
        ("", ""),
    ],
)
def test_names_without_return_type_and_parameters(printed, name):
    assert kernel_name(printed) == name
    assert kernel_name(name) == name


def test_kernels_that_differ_in_a_template_argument_stay_apart():
    names = {kernel_name(f"void k<{argument}>(T1)") for argument in ("float", "double", "(int)1")}
    assert len(names) == 3


CHOSEN = """
    nchwToNhwcKernel batched_transpose_32x16_half SubTensorOpWithCastTensor1d
    transpose_NCHW2CNHW_V2_2D_WG_off64 Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256
    naive_conv_ab_nonpacked_fwd_nchw_float_double_float
"""
OF_TORCH = "at::native::vectorized_elementwise_kernel<4> triton_poi_fused_transpose_2 Memset"


def test_the_libraries_of_every_vendor_choose_kernels_and_torch_does_not():
    assert all(map(is_chosen_by_library, CHOSEN.split()))
    assert not any(map(is_chosen_by_library, OF_TORCH.split()))
