// Package proof shows on real sockets, in real time and against the real program what issue 4 promises of the gateway: that it keeps to
// HTTP/2, withstands abuse, and is after chaos and reloads what it was before.
//
// All of it is tests: each builds a world around a child process `cortex serve`. README.md says what each shows and its command.
package proof
