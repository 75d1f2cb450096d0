// Live updates and keys. Every page works without this.
"use strict";
