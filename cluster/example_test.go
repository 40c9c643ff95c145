package cluster_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cluster"
)

func Example() {
	engine, err := cortex.New(cortex.Config{Name: "wallet"})
	if err != nil {
		log.Fatal(err)
	}
	c, err := cluster.New(cluster.Config{URL: "redis://127.0.0.1:1/0"}) // nobody is there: that is no error
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := c.Guard(engine); err != nil {
		log.Fatal(err)
	}
	permit, err := engine.Admit(context.Background(), 5) // guarded as ever
	if err != nil {
		log.Fatal(err)
	}
	permit.Record(cortex.Success)
	time.Sleep(10 * time.Millisecond)
	fmt.Println(c.Status().Targets[0].Target, c.Status().Mode)
	// Output: wallet alone
}

func ExampleRedacted() {
	fmt.Println(cluster.Redacted("redis+sentinel://me:secret@10.0.0.1:26379,10.0.0.2/main/0?sentinel_password=secret"))
	// Output: redis+sentinel://…@10.0.0.1:26379,10.0.0.2/main/0
}
