// SPDX-License-Identifier: MIT
// Lists of tensors of any dtypes, sizes, alignments and data, compared as core/lists.hpp does it.
#include "../core/lists.hpp"
#include "fuzz.hpp"

namespace {

/* A run of magnitudes, with bits of all kinds among them. */
Bytes random_data(uint32_t dtype, uint64_t count, bool good, Source &source)
{
    const Dtype &d = real(dtype);
    const uint64_t n = count * parts_of(dtype), low = d.infinity() / 256 * source.below(256),
                   spans[] = {1, d.normal(), 16 * d.normal(), d.infinity()},
                   lows[] = {0, low, d.infinity() - d.normal(),
                             static_cast<uint64_t>(d.bias - 3) << d.mantissa};
    const uint64_t span = spans[source.below(4)], first = lows[source.below(4)];
    const uint64_t specials = good ? 0 : source.below(4); /* none, none, one, one in 16 */
    const std::vector<uint64_t> special = special_bits(d);
    const bool of_one_sign = source.one_in(4);
    Random random = {source.bits(4)};
    Bytes data(n * d.size);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t r = random.next(), at = first + (r >> 8) % span;
        uint64_t bits = std::min(at, d.infinity() - 1) | (r & 1 && !of_one_sign ? d.sign() : 0);
        if (specials == 3 && (r >> 1) % 16 == 0)
            bits = random.next() % 2 ? special[random.next() % special.size()]
                                     : random.next() & (d.sign() | (d.sign() - 1));
        write_bits(d, data.data(), i, bits);
    }
    if (specials == 2 && n > 0) {
        const uint64_t at = source.one_in(2) ? n - 1 - source.below(3) % n : source.bits(4) % n;
        write_bits(d, data.data(), at, special[source.below(special.size())]);
    }
    return data;
}

uint64_t random_count(Source &source, bool large)
{
    static const uint64_t ends[] = {3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127};
    if (large)
        return source.one_in(4) ? source.below(600000)
                                : 65536 * (1 + source.below(4)) - 1 + source.below(3);
    const uint64_t kind = source.below(8);
    return kind == 0   ? source.below(2)
           : kind == 1 ? 4096 * (1 + source.below(3)) - 1 + source.below(3)
           : kind <= 3 ? ends[source.below(16)]
           : kind == 4 ? source.below(2200)
                       : source.below(80);
}

uint32_t random_dtype(Source &source, bool complex)
{
    return complex ? static_cast<uint32_t>(GSC_COMPLEX64 + source.below(2))
                   : dtypes[source.below(std::size(dtypes))].dtype;
}

gsc_factor random_factor(Source &source)
{
    gsc_factor factor, product;
    static const double limits[] = {0x1p-149, 0x1p-126, 0x1p126}; /* of normal and any floats */
    double scale = std::ldexp(1, static_cast<int>(source.below(64)) - 24);
    if (source.one_in(4))
        scale = limits[source.below(3)] * std::ldexp(1 + static_cast<double>(source.below(2)) / 3,
                                                     static_cast<int>(source.below(24)));
    else if (source.one_in(2))
        scale = source.number();
    if (gsc_factor_init(scale, &factor, nullptr) != GSC_OK)
        gsc_factor_init(65536, &factor, nullptr);
    /* Others are not the inverse of each other to the bit. */
    if (source.one_in(4) &&
        gsc_factor_multiply(nullptr, &factor, source.number(), &product, nullptr) == GSC_OK)
        return product;
    return factor;
}

Call random_call(Source &source, bool large)
{
    Call c = {};
    c.operation = static_cast<Operation>(source.below(OPERATIONS));
    c.has_factor = !source.one_in(8);
    c.factor = random_factor(source);
    c.factor.generation = source.below(3);
    if (c.operation != CHECK && c.operation != ACCUMULATE && source.one_in(3)) {
        c.clamp = std::fabs(source.number());
        if (!std::isfinite(c.clamp))
            c.clamp = 1;
    }
    c.want = static_cast<uint32_t>(source.one_in(4) ? want_all : source.below(8));
    c.each = source.one_in(2);
    c.histogram = source.one_in(3);
    c.has_policy = source.one_in(3);
    c.policy.guard_norm = source.one_in(8) ? 1 : 0;
    c.policy.guard_ratio = source.one_in(8) ? 2 : 0;
    c.policy.guard_sigmas = source.one_in(8) ? 2 : 0;
    c.policy.overflow_test = source.one_in(2) ? GSC_TEST_NORM : GSC_TEST_ELEMENT;
    c.policy.bad_loss_rule = source.one_in(2) ? GSC_BAD_LOSS_HOLD : GSC_BAD_LOSS_OVERFLOW;
    c.policy.max_failed_backoffs = 1;
    c.has_loss = source.one_in(2);
    c.loss.in = random_dtype(source, false);
    c.loss.count = source.below(4);
    c.loss.data = random_data(c.loss.in, c.loss.count, source.one_in(2), source);
    if (c.operation == COPY || c.operation == SKIP) { /* which make no report */
        c.has_factor = c.each = c.histogram = c.has_policy = c.has_report = c.has_loss = false;
        c.clamp = 0;
        c.want = 0;
    }
    const bool one_dtype = source.one_in(4), castless = source.one_in(3),
               good =
                   source.one_in(2); /* most of it: the first bad one is then far from the start */
    uint64_t bytes = 0;
    /* Enough for threads, and for output past the caches. */
    const uint64_t most = large ? (source.one_in(4) ? 17u : 5u) << 20 : 100000,
                   n = large ? 80 : source.below(source.one_in(2) ? 4 : 41);
    for (uint64_t i = 0; i < n && bytes < most; i++) {
        Entry e = {};
        const bool complex = source.one_in(6);
        e.in = one_dtype && i ? c.entries[0].in : random_dtype(source, complex);
        e.out = random_dtype(source, parts_of(e.in) == 2);
        if (castless || c.operation == CHECK)
            e.out = e.in;
        e.count = random_count(source, large && i % 4 != 3);
        e.in_place = c.operation != ACCUMULATE && c.operation != SKIP && source.one_in(2) &&
                     gsc_dtype_size(e.in) == gsc_dtype_size(e.out);
        e.shift = source.below(64);
        e.out_shift = source.below(64);
        e.data = random_data(e.in, e.count, good && !source.one_in(4), source);
        e.before = random_data(e.out, e.count, good, source);
        bytes += e.data.size();
        if (c.clamp != 0 && limit_of(real(e.out), c.clamp) == 0) /* which is refused */
            c.clamp = 1;
        c.entries.push_back(std::move(e));
    }
    return c;
}

} // namespace

void fuzz_lists(Source &source, bool rare)
{
    const Call c = random_call(source, rare);
    uint64_t elements = 0;
    for (const Entry &e : c.entries)
        elements += e.count;
    const gsc_report report =
        check_call(c, source.bits(1), elements < 2000 || source.one_in(2)).report;

    gsc_factor clipped;
    const double max_norm = std::fabs(source.number());
    gsc_error err = {};
    const gsc_status status = gsc_factor_clip_grad_norm(nullptr, c.has_factor ? &c.factor : nullptr,
                                                        &report, max_norm, &clipped, &err);
    if (status != GSC_OK)
        return check_error(err, status);
    claim(clipped.inverse > 0 && clipped.inverse <= (c.has_factor ? c.factor.inverse : 1),
          "clipping makes gradients smaller, but not zero");
}
