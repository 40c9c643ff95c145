module github.com/seed-a29ca62a/cortex/bench

go 1.26

require (
	github.com/afex/hystrix-go v0.0.0-20180502004556-fa1af6a1f4f5
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/go-kratos/aegis v0.2.0
	github.com/seed-a29ca62a/cortex v0.0.0
	github.com/sony/gobreaker/v2 v2.4.0
)

require (
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/smartystreets/goconvey v1.8.1 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
)

replace github.com/seed-a29ca62a/cortex => ../
