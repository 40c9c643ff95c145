package tlsfile_test

import (
	"errors"
	"fmt"

	"github.com/seed-a29ca62a/cortex/tlsfile"
)

func ExampleLoadServer() {
	_, err := tlsfile.LoadServer(tlsfile.ServerFiles{Cert: "/etc/cortex/tls.crt"})
	var f *tlsfile.FileError
	fmt.Println(errors.As(err, &f))
	fmt.Println(err)
	// Output:
	// true
	// tlsfile: key: is not given: a certificate and its private key go together ("/etc/cortex/tls.crt")
}
