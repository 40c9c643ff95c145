module github.com/seed-a29ca62a/cortex

go 1.26
