package model

import "math"

// lnFactorial is ln n!.
func lnFactorial(n int) float64 {
	v, _ := math.Lgamma(float64(n) + 1)
	return v
}

func lnChoose(n, k int) float64 { return lnFactorial(n) - lnFactorial(k) - lnFactorial(n-k) }

// lnBeta is the logarithm of the beta function.
func lnBeta(a, b float64) float64 {
	x, _ := math.Lgamma(a)
	y, _ := math.Lgamma(b)
	z, _ := math.Lgamma(a + b)
	return x + y - z
}

// binomialPMF is P(X = k) for k successes among n at rate p.
func binomialPMF(n int, p float64, k int) float64 {
	switch {
	case k < 0 || k > n:
		return 0
	case p <= 0:
		return one(k == 0)
	case p >= 1:
		return one(k == n)
	}
	return math.Exp(lnChoose(n, k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// binomialTail is P(X ≥ k). It sums from k away from the mean, where the terms fall, so that it ends soon for any n.
func binomialTail(n int, p float64, k int) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n:
		return 0
	}
	if float64(k) <= float64(n)*p {
		return 1 - binomialLower(n, p, k-1)
	}
	sum := 0.0
	for i := k; i <= n; i++ {
		term := binomialPMF(n, p, i)
		sum += term
		if term <= sum*1e-17 { // also where every term is 0
			break
		}
	}
	return min(1, sum)
}

// binomialLower is P(X ≤ k).
func binomialLower(n int, p float64, k int) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	if float64(k) > float64(n)*p {
		return 1 - binomialTail(n, p, k+1)
	}
	sum := 0.0
	for i := k; i >= 0; i-- {
		term := binomialPMF(n, p, i)
		sum += term
		if term <= sum*1e-17 { // also where every term is 0
			break
		}
	}
	return min(1, sum)
}

// posteriorAbove is P(θ > x) for the Beta(1+f, 1+s) posterior of a failure probability: 1 − I_x(1+f, 1+s), which for whole
// numbers is the binomial sum P(X ≤ f) of f+s+1 trials at x.
func posteriorAbove(f, s int, x float64) float64 { return binomialLower(f+s+1, x, f) }

// normalTail is 1 − Φ(z), without cancellation.
func normalTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

// normalQuantile is the z with 1 − Φ(z) = q.
func normalQuantile(q float64) float64 { return math.Sqrt2 * math.Erfcinv(2*q) }
