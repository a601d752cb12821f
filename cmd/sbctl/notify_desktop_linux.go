package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// desktopPatience bounds one call to the desktop.
const desktopPatience = 5 * time.Second

// Names of the desktop's notifications, from the Desktop Notifications Specification.
const (
	notificationsName = "org.freedesktop.Notifications"
	notificationsPath = "/org/freedesktop/Notifications"
)

// desktop notifies over the session bus. It speaks D-Bus itself: a program that did it
// for us would get what is told in its arguments, which every uid can read.
type desktop struct {
	app       *app
	address   string
	arguments bool
	conn      *dbus.Conn
	shown     map[string]uint32 // ids of notifications, by id of the request
}

// newDesktop looks for the session bus.
func newDesktop(arguments bool, a *app) (teller, error) {
	address := os.Getenv("DBUS_SESSION_BUS_ADDRESS")
	if address == "" { // the library would start a bus of its own, on which nobody is
		socket := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "bus")
		if info, err := os.Stat(socket); err != nil || info.Mode().Type() != os.ModeSocket {
			return nil, errors.New("there is no session bus here: DBUS_SESSION_BUS_ADDRESS names it")
		}
		address = "unix:path=" + socket
	}
	d := &desktop{app: a, address: address, arguments: arguments, shown: map[string]uint32{}}
	return d, d.connect()
}

func (d *desktop) connect() error {
	if d.conn != nil && d.conn.Connected() {
		return nil
	}
	conn, err := dbus.Connect(d.address)
	if err != nil {
		return fmt.Errorf("reaching the session bus: %w", err)
	}
	d.conn = conn
	return nil
}

func (d *desktop) name() string { return "desktop" }

func (d *desktop) call(ctx context.Context, method string, args ...any) (*dbus.Call, error) {
	if err := d.connect(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, desktopPatience)
	defer cancel()
	got := d.conn.Object(notificationsName, notificationsPath).CallWithContext(ctx, notificationsName+"."+method, 0, args...)
	return got, got.Err
}

// tell shows a notification that stays until the request is over.
func (d *desktop) tell(ctx context.Context, m *operatorv1.Approval) error {
	const (
		critical = byte(2)
		stays    = int32(0)
	)
	body := html.EscapeString(strings.Join(d.app.noticeLines(m, d.arguments), "\n")) // it may be read as markup
	got, err := d.call(ctx, "Notify", "SubjectBroker", uint32(0), "dialog-password", noticeTitle(m), body, []string{},
		map[string]dbus.Variant{"urgency": dbus.MakeVariant(critical)}, stays)
	if err != nil {
		return err
	}
	var id uint32
	if err := got.Store(&id); err != nil {
		return fmt.Errorf("showing a notification: %w", err)
	}
	d.shown[m.GetApprovalId()] = id
	return nil
}

// over takes the notification away.
func (d *desktop) over(ctx context.Context, m *operatorv1.Approval) {
	if id, ok := d.shown[m.GetApprovalId()]; ok {
		delete(d.shown, m.GetApprovalId())
		_, _ = d.call(ctx, "CloseNotification", id)
	}
}
