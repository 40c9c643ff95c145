//go:build !race

package suite_test

// seeds is how many runs a scenario is judged by.
const seeds = 2
