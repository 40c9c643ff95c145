package bench

import "testing"

func BenchmarkGuardClosed(b *testing.B)                 { GuardClosed(b) }
func BenchmarkGuardOpen(b *testing.B)                   { GuardOpen(b) }
func BenchmarkDo(b *testing.B)                          { Do(b) }
func BenchmarkDoWithTimeout(b *testing.B)               { DoWithTimeout(b) }
func BenchmarkGobreakerRolling60s(b *testing.B)         { GobreakerRolling60s(b) }
func BenchmarkGobreakerOpen(b *testing.B)               { GobreakerOpen(b) }
func BenchmarkFailsafeRetryBreaker(b *testing.B)        { FailsafeRetryBreaker(b) }
func BenchmarkFailsafeRetryBreakerTimeout(b *testing.B) { FailsafeRetryBreakerTimeout(b) }
func BenchmarkHystrix(b *testing.B)                     { Hystrix(b) }
func BenchmarkAegisSRE(b *testing.B)                    { AegisSRE(b) }
