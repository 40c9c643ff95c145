package config_test

import (
	"fmt"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
)

func ExampleParse() {
	_, err := config.Parse("cortex.yaml", []byte(`
targets:
  payments:
    endpoints: [http://127.0.0.1:9000]
    retry: { max_retrys: 2 }
    timeout:
      max: 5
`))
	fmt.Println(err)
	// Output:
	// cortex.yaml:5:14: targets.payments.retry.max_retrys: unknown key: did you mean max_retries?
	// cortex.yaml:7:7: targets.payments.timeout.max: 5: missing unit: want a duration such as 5s or 100ms
}

func ExampleFile_Engine() {
	f, err := config.Parse("cortex.yaml", []byte("targets: { payments: { endpoints: [http://127.0.0.1:9000] } }"))
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := f.Engine("payments")
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := cortex.New(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(engine.Name(), engine.Config().Breaker.OpenFor)
	// Output: payments 100ms
}
