// A page that was opened from a file may not start workers, and the search of this site runs in one. This is one in a frame
// instead, so that the search works from a folder or a stick, without a server and without a script from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
      this.scope = this.frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => {
        const script = Object.assign(this.scope.document.createElement("script"), { src: url, onload: done });
        this.scope.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
