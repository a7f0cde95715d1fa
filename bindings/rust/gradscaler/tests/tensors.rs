// SPDX-License-Identifier: MIT
//! Lists of slices: the same bits in place and elsewhere, in one call and in many, on any thread.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{Bf16, Dtype, Element, Factor, Report, Scaler, Tensor, TensorMut, Want, F16};

const ALL: Want = Want::COUNTS
    .union(Want::FIRST_BAD)
    .union(Want::NORM)
    .union(Want::AMAX)
    .union(Want::UNDERFLOW);

/// Bit patterns without order, with the odd Inf and NaN among them.
fn patterns(count: usize, seed: u64) -> Vec<u64> {
    let mut x = seed;
    let next = |_| {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        x ^ x >> 29
    };
    (0..count).map(next).collect()
}

/// Gradients in every dtype.
#[derive(Clone)]
struct Gradients {
    f32: Vec<f32>,
    f64: Vec<f64>,
    f16: Vec<F16>,
    bf16: Vec<Bf16>,
}

impl Gradients {
    fn new(count: usize) -> Self {
        Self {
            f32: patterns(count, 1)
                .iter()
                .map(|&bits| f32::from_bits(bits as u32))
                .collect(),
            f64: patterns(count, 2)
                .iter()
                .map(|&bits| f64::from_bits(bits))
                .collect(),
            f16: patterns(count, 3)
                .iter()
                .map(|&bits| F16(bits as u16))
                .collect(),
            bf16: patterns(count, 4)
                .iter()
                .map(|&bits| Bf16(bits as u16))
                .collect(),
        }
    }

    fn views(&self) -> [Tensor<'_>; 4] {
        let Self {
            f32,
            f64,
            f16,
            bf16,
        } = self;
        [
            Tensor::new(f32),
            Tensor::new(f64),
            Tensor::new(f16),
            Tensor::new(bf16),
        ]
    }

    fn views_mut(&mut self) -> [TensorMut<'_>; 4] {
        let Self {
            f32,
            f64,
            f16,
            bf16,
        } = self;
        [
            TensorMut::new(f32),
            TensorMut::new(f64),
            TensorMut::new(f16),
            TensorMut::new(bf16),
        ]
    }

    fn bits(&self) -> (Vec<u32>, Vec<u64>, &[F16], &[Bf16]) {
        let f32 = self.f32.iter().map(|x| x.to_bits()).collect();
        (
            f32,
            self.f64.iter().map(|x| x.to_bits()).collect(),
            &self.f16,
            &self.bf16,
        )
    }
}

#[test]
fn the_result_has_the_same_bits_in_place_and_elsewhere() {
    for scale in [1.0, 3.0, 65536.0, 1e-30, 1e300] {
        let factor = Factor::new(scale).unwrap();
        let before = Gradients::new(1000);
        let (mut in_place, mut elsewhere) = (before.clone(), Gradients::new(1000));

        let checked = factor.check(&before.views(), ALL).unwrap();
        let report = factor.unscale(&mut in_place.views_mut(), ALL).unwrap();
        let other = factor
            .unscale_into(&before.views(), &mut elsewhere.views_mut(), ALL)
            .unwrap();
        assert_eq!(in_place.bits(), elsewhere.bits());
        assert_eq!((report, checked), (other, other));

        factor.scale(&mut in_place.views_mut()).unwrap();
        let unscaled = elsewhere.clone();
        factor
            .scale_into(&unscaled.views(), &mut elsewhere.views_mut())
            .unwrap();
        assert_eq!(in_place.bits(), elsewhere.bits());
    }
}

#[test]
fn one_call_reports_what_many_do() {
    let gradients = Gradients::new(1000);
    let factor = Factor::new(16.0).unwrap();
    let together = factor.check(&gradients.views(), ALL).unwrap();
    let alone = gradients
        .views()
        .map(|view| factor.check(&[view], ALL).unwrap());
    let merged = alone
        .iter()
        .try_fold(Report::default(), |sum, one| sum.merge(one))
        .unwrap();
    assert_eq!(merged.nan_count(), together.nan_count());
    assert_eq!(merged.inf_count(), together.inf_count());
    assert_eq!(merged.zeros_made(), together.zeros_made());
    assert_eq!(merged.amax(), together.amax());
    assert_eq!(merged.elements(), 4000);
}

#[test]
fn a_report_has_what_was_asked_for() {
    let data = [3.0f32, f32::INFINITY, -4.0, f32::NAN];
    let report = Factor::ONE
        .check(&[Tensor::new::<f32>(&[]), Tensor::new(&data)], ALL)
        .unwrap();
    assert!(report.found_inf());
    assert_eq!(report.first_bad(), Some((1, 1)));
    assert_eq!((report.nan_count(), report.inf_count()), (Some(1), Some(1)));
    assert_eq!((report.norm(), report.amax()), (Some(5.0), Some(4.0)));
    assert_eq!(
        (report.zeros_made(), report.subnormals_made()),
        (Some(0), Some(0))
    );
    assert_eq!(
        format!("{report:?}"),
        "Report { found_inf: true, elements: 4, first_bad: (1, 1), nan_count: 1, inf_count: 1, \
         zeros_made: 0, subnormals_made: 0, norm: 5.0, amax: 4.0 }"
    );

    let report = Factor::ONE
        .check(&[Tensor::new(&data)], Want::NONE)
        .unwrap();
    assert!(report.found_inf());
    assert_eq!(
        (report.first_bad(), report.nan_count(), report.inf_count()),
        (None, None, None)
    );
    assert_eq!(
        (report.norm(), report.amax(), report.zeros_made()),
        (None, None, None)
    );
}

#[test]
fn no_tensor_and_empty_tensors_are_fine() {
    let report = Factor::ONE.unscale(&mut [], ALL).unwrap();
    assert!(!report.found_inf() && report.elements() == 0);
    let mut empty: [TensorMut; 2] = [
        TensorMut::new::<F16>(&mut []),
        TensorMut::new::<f64>(&mut []),
    ];
    assert!(empty[0].is_empty());
    Factor::ONE.scale(&mut empty).unwrap();
    assert_eq!(
        Factor::ONE
            .check(TensorMut::as_inputs(&empty), ALL)
            .unwrap()
            .elements(),
        0
    );
}

#[test]
fn a_view_knows_its_dtype_and_length() {
    fn of<T: Element + Default>() -> (Dtype, usize) {
        let mut data = [T::default(); 5];
        let view = TensorMut::new(&mut data);
        assert_eq!(
            format!("{view:?}"),
            format!("TensorMut({:?}, 5 elements)", T::DTYPE)
        );
        (view.dtype(), view.len())
    }
    assert_eq!(
        [of::<f32>(), of::<f64>(), of::<F16>(), of::<Bf16>()],
        [
            (Dtype::F32, 5),
            (Dtype::F64, 5),
            (Dtype::F16, 5),
            (Dtype::BF16, 5)
        ]
    );
}

#[test]
fn a_factor_of_one_casts() {
    let (wide, mut half, mut upper) = ([1.0f32, -2.0, 65520.0], [F16(0); 3], [Bf16(0); 3]);
    let inputs = [Tensor::new(&wide), Tensor::new(&wide)];
    let mut out = [TensorMut::new(&mut half), TensorMut::new(&mut upper)];
    Factor::ONE.scale_into(&inputs, &mut out).unwrap();
    assert_eq!(half, [F16(0x3c00), F16(0xc000), F16(0x7c00)]);
    assert_eq!(upper, [Bf16(0x3f80), Bf16(0xc000), Bf16(0x4780)]);
}

#[test]
fn clipping_is_one_pass_or_a_multiplier() {
    let mut grads = [30.0f32, 40.0];
    let factor = Factor::new(10.0).unwrap();
    let report = factor.check(&[Tensor::new(&grads)], Want::NORM).unwrap();
    assert_eq!(report.norm(), Some(5.0));
    let clip = factor.clip(&report, 1.0).unwrap();
    clip.unscale(&mut [TensorMut::new(&mut grads)], Want::NONE)
        .unwrap();
    assert!(
        (grads[0] - 0.6).abs() < 1e-6 && (grads[1] - 0.8).abs() < 1e-6,
        "{grads:?}"
    );
    assert_eq!(
        report.clip_factor(1.0).unwrap().inverse(),
        1.0 / (5.0 + 1e-6)
    );
    assert_eq!(report.clip_factor(9.0).unwrap().inverse(), 1.0);
}

#[test]
fn late_gradients_keep_the_factor_of_their_loss() {
    let mut scaler = Scaler::preset("torch").unwrap();
    let late = scaler.factor();
    scaler.update(&Report::of(true)).unwrap();
    assert_eq!((late.loss_scale(), scaler.loss_scale()), (65536.0, 32768.0));
    assert_eq!((late.serial(), scaler.factor().serial()), (0, 1));
    let mut grads = [65536.0f64];
    late.unscale(&mut [TensorMut::new(&mut grads)], scaler.needs())
        .unwrap();
    assert_eq!(grads, [1.0]);
    assert_eq!(late.multiply(4.0).unwrap().inverse(), 1.0 / (4.0 * 65536.0));
}

#[test]
fn threads_share_a_scaler_and_move_views() {
    let scaler = Scaler::preset("recommended").unwrap();
    let mut shards: Vec<Vec<f32>> = (0..8).map(|_| vec![65536.0; 10_000]).collect();
    let reports: Vec<Report> = std::thread::scope(|threads| {
        let views = shards.iter_mut().map(|shard| TensorMut::new(shard));
        let running: Vec<_> = views
            .map(|view| threads.spawn(|| scaler.unscale(&mut [view], Want::NORM).unwrap()))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(shards.iter().flatten().all(|&x| x == 1.0));
    let merged = reports
        .iter()
        .try_fold(Report::default(), |sum, one| sum.merge(one))
        .unwrap();
    assert_eq!(
        (merged.norm(), merged.elements()),
        (Some(80_000f64.sqrt()), 80_000)
    );
}
